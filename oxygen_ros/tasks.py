"""Language tasks that ask by themselves: every N frames or every N seconds, with few pending.

Time is the frames' own stamps, so that live and replay ask of the same frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from oxygen_ros.types import LanguageRequest, OxygenError


@dataclass(frozen=True)
class TaskRule:
    """One language task. With neither every_frames nor every_s it is only asked on request.

    prompt: what is asked, also of a request that brings no prompt of its own. every_frames: asked
    of each N-th frame; every_s: of the first frame at least so many seconds after the last that
    was asked. max_pending: unfinished answers beyond which an asking is skipped and counted.
    """

    task: str
    prompt: str = ''
    every_frames: int = 0
    every_s: float = 0.0
    max_tokens: int = 32
    max_pending: int = 1

    def __post_init__(self) -> None:
        if self.every_frames and self.every_s:
            raise OxygenError(
                f'task {self.task}: every_frames is {self.every_frames} and every_s is '
                f'{self.every_s:g}: set one of them, the other to 0'
            )


class TaskSchedule:
    """Decides at each frame which tasks ask. skipped: task -> askings left out for the backlog."""

    def __init__(self, rules: Iterable[TaskRule]) -> None:
        self.rules = {rule.task: rule for rule in rules}
        self.skipped: Counter[str] = Counter()
        self._pending: dict[str, list[LanguageRequest]] = {task: [] for task in self.rules}
        self._asked: Counter[str] = Counter()
        self._frames = 0
        self._last_ns: dict[str, int] = {}

    def complete(self, request: LanguageRequest) -> str:
        """The prompt of a caller's request: its own, or its task's."""
        rule = self.rules.get(request.task)
        return request.prompt or (rule.prompt if rule else '')

    def problem(self, request: LanguageRequest) -> str:
        """Why a caller's request cannot be taken: ids of tasks that ask by themselves; or ''."""
        task, separator, _ = request.request_id.partition('/')
        rule = self.rules.get(task) if separator else None
        if rule is None or not (rule.every_frames or rule.every_s):
            return ''
        return (
            f'request_id {request.request_id!r} begins with {task + separator!r}, as what task '
            f'{task} asks by itself: choose another'
        )

    def due(self, stamp_ns: int) -> list[LanguageRequest]:
        """Requests to raise on a frame with this stamp, which counts as one frame."""
        asking = [rule for rule in self.rules.values() if self._is_due(rule, stamp_ns)]
        self._frames += 1
        requests = []
        for rule in asking:
            if len(self._pending[rule.task]) >= rule.max_pending:
                self.skipped[rule.task] += 1
                continue
            name = f'{rule.task}/{self._asked[rule.task]}'
            self._asked[rule.task] += 1
            request = LanguageRequest(name, rule.task, max_tokens=rule.max_tokens)
            self._pending[rule.task].append(request)
            requests.append(request)
        return requests

    def ended(self, request: LanguageRequest) -> None:
        """A request got its last delta; one of a caller is none of these, whatever its id."""
        for task, pending in self._pending.items():
            self._pending[task] = [asked for asked in pending if asked is not request]

    def _is_due(self, rule: TaskRule, stamp_ns: int) -> bool:
        if rule.every_frames:
            return self._frames % rule.every_frames == 0
        if not rule.every_s:
            return False
        last = self._last_ns.get(rule.task)
        jumped_back = last is not None and stamp_ns < last
        if last is None or jumped_back or stamp_ns - last >= rule.every_s * 1e9:
            self._last_ns[rule.task] = stamp_ns
            return True
        return False

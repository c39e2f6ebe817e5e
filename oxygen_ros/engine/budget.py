"""How much language may run per frame. No tensors here; times are steady nanoseconds."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple, Protocol

from oxygen_ros.types import OxygenError

_FRESH = 0.2  # weight of the newest measurement in a running mean
_PATIENCE = 10  # frames in a row for which words may be held back for want of time
DECODE, APPEND, PREFILL = 'decode', 'append', 'prefill'


class Work(NamedTuple):
    """One unit of language. size: rows of a decode step, prompt words of an admission.

    kind: DECODE, or an admission that finds its prefix (APPEND) or computes it (PREFILL).
    """

    kind: str
    size: int


class Budget(Protocol):
    """Asked before every admission and every decode step."""

    name: str
    used: int  # decode steps since the last frame or grant

    def frame_arrived(self, now: int) -> None:
        """A frame came in; it may still wait for its turn."""

    def refill(self, now: int) -> None:
        """A chunk was handed out, or the idle timer fired because no frame came when due."""

    def spend(self, work: Work, took_ns: int) -> None:
        """This was run."""

    def allows(self, now: int, work: Work) -> bool:
        """Whether this may be run; the answer stays the same until time or a call changes it."""
        ...

    def left(self) -> int:
        """Steps left, -1 where that is unlimited or unknown."""
        ...


class FixedBudget:
    """k decode steps per frame, as in the paper; None is unlimited. Admissions are free."""

    def __init__(self, steps: int | None) -> None:
        self.steps = steps
        self.used = 0
        self.name = 'unlimited' if steps is None else str(steps)

    def frame_arrived(self, now: int) -> None:
        """Nothing to learn from arrivals."""

    def refill(self, now: int) -> None:
        """A chunk was handed out, or the idle timer fired."""
        self.used = 0

    def spend(self, work: Work, took_ns: int) -> None:
        """This was run."""
        self.used += work.kind == DECODE

    def allows(self, now: int, work: Work) -> bool:
        """Whether it is no decode step, or one within the budget."""
        return work.kind != DECODE or self.steps is None or self.used < self.steps

    def left(self) -> int:
        """Steps left, -1 for unlimited."""
        return -1 if self.steps is None else self.steps - self.used


class AutoBudget:
    """What fits before the next frame is due, from measured times of steps and admissions.

    What was held back at ten frames in a row may run once all the same: so no request starves, and
    a time that was wrong once is measured again.
    """

    name = 'auto'

    def __init__(self, margin_ns: int = 1_000_000) -> None:
        self.margin_ns = margin_ns
        self.used = 0
        self._period: float | None = None  # ns between frames, running mean
        self._arrived: int | None = None
        self._due: float | None = None  # when the next frame is expected
        self._took_ns: defaultdict[str, dict[int, float]] = defaultdict(dict)  # running means
        self._held: set[str] = set()  # kinds refused since the last frame or grant
        self._held_frames: Counter[str] = Counter()  # kind -> frames in a row

    def frame_arrived(self, now: int) -> None:
        """Learn the frame period; a pause of four periods starts the learning anew."""
        if self._arrived is not None:
            gap = now - self._arrived
            paused = self._period is not None and gap >= 4 * self._period
            self._period = None if paused else _mean(self._period, gap)
        self._arrived = now
        self._due = None if self._period is None else self._came(now) + self._period

    def refill(self, now: int) -> None:
        """A chunk was handed out, or the idle timer fired because no frame came when due."""
        self.used = 0
        if self._due is not None and self._period is not None and now > self._due:
            self._due = now + self._period
        self._held_frames.update(self._held)
        self._held.clear()

    def spend(self, work: Work, took_ns: int) -> None:
        """This was run and measured."""
        self.used += work.kind == DECODE
        known = self._took_ns[work.kind]
        known[work.size] = _mean(known.get(work.size), took_ns)
        self._held.discard(work.kind)
        self._held_frames[work.kind] = 0

    def allows(self, now: int, work: Work) -> bool:
        """Whether it would end before the next frame is due, or has been held back for long."""
        if self._due is None or self._held_frames[work.kind] >= _PATIENCE:
            return True
        if now + self._estimate(work) + self.margin_ns <= self._due:
            return True
        self._held.add(work.kind)
        return False

    def left(self) -> int:
        """Steps that still fit at the last measured pace; -1 while nothing is known."""
        known = self._took_ns[DECODE]
        if self._due is None or not known or self._arrived is None:
            return -1
        pace = max(known[max(known)], 1.0)
        return max(0, int((self._due - self._arrived) / pace) - self.used)

    def _came(self, now: int) -> float:
        """When a frame came that is taken now: if it is a little late, it waited for words."""
        if self._due is None or self._period is None or not 0 < now - self._due < self._period / 2:
            return now
        return self._due + _FRESH * (now - self._due)

    def _estimate(self, work: Work) -> float:
        """ns that it takes; of the nearest size known when this one is new."""
        known = self._took_ns[work.kind]
        if not known:
            return 0.0
        return known[min(known, key=lambda size: abs(size - work.size))]


def _mean(old: float | None, new: float) -> float:
    return float(new) if old is None else (1 - _FRESH) * old + _FRESH * new


def make_budget(value: int | str) -> Budget:
    """From a number of steps (int or digits), 'auto' or 'unlimited'; raises OxygenError."""
    text = str(value).strip().lower()
    if text == 'auto':
        return AutoBudget()
    if text == 'unlimited':
        return FixedBudget(None)
    if text.isdigit():
        return FixedBudget(int(text))
    raise OxygenError(
        f'budget is {value!r}: allowed are a number of decode steps per frame (0 or more), '
        "'auto' or 'unlimited'"
    )

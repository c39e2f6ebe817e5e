"""What the node tells about itself: rates, ~/status, /diagnostics."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from oxygen_ros import msg
from oxygen_ros.ros.messages import key_values, time_msg
from oxygen_ros.ros.parameters import Value
from oxygen_ros.types import EngineStats

LOG_EVERY_S = 5.0


class Meter:
    """Events per second over the last second, on the steady clock. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[tuple[float, int]] = deque()

    def add(self, count: int = 1) -> None:
        """count events happened now."""
        with self._lock:
            self._events.append((time.monotonic(), count))
            self._trim()

    def rate(self) -> float:
        """Events of the last second."""
        with self._lock:
            self._trim()
            return float(sum(count for _, count in self._events))

    def _trim(self) -> None:
        oldest = time.monotonic() - 1.0
        while self._events and self._events[0][0] < oldest:
            self._events.popleft()


class Drops:
    """Counts what was dropped by reason, from any thread; says so now and then in the log."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._said: dict[tuple[str, str], float] = {}

    def add(self, reason: str, where: str = '', text: str = '') -> None:
        """One more was dropped; where (a topic) and text are logged every 5 s at most."""
        now = time.monotonic()
        with self._lock:
            self._counts[reason] += 1
            count = self._counts[reason]
            speak = bool(text) and now - self._said.get((reason, where), -math.inf) >= LOG_EVERY_S
            if speak:
                self._said[reason, where] = now
        if speak:
            self._log(f'{where}: {text} ({reason}, {count} so far)')

    def counts(self) -> Counter[str]:
        """reason -> how many."""
        with self._lock:
            return Counter(self._counts)


@dataclass
class Rates:
    """The meters behind ~/status. camera_to_chunk_ms: of the last chunk."""

    frames: Meter = field(default_factory=Meter)
    actions: Meter = field(default_factory=Meter)
    stream: Meter = field(default_factory=Meter)
    tokens: Meter = field(default_factory=Meter)
    camera_to_chunk_ms: float = 0.0


@dataclass(frozen=True)
class Report:
    """One moment of the node, from which both messages are made."""

    now_ns: int
    state: str
    detail: str
    values: Mapping[str, Value]
    stats: EngineStats
    effective: Mapping[str, str]
    dropped: Mapping[str, int]
    missed_ticks: int


def status_msg(report: Report, rates: Rates) -> msg.EngineStatus:
    """The whole of ~/status."""
    stats, values = report.stats, report.values
    effective = report.effective
    message = msg.EngineStatus(
        state=report.state,
        detail=report.detail,
        mode=str(values['mode']),
        budget=str(values['budget']),
        device=str(effective.get('device', values['device'])),
        dtype=str(effective.get('dtype', values['dtype'])),
        frames_per_s=rates.frames.rate(),
        actions_per_s=rates.actions.rate(),
        action_stream_hz=rates.stream.rate(),
        tokens_per_s=rates.tokens.rate(),
        camera_to_chunk_ms=rates.camera_to_chunk_ms,
        frames=stats.frames,
        chunks=stats.chunks,
        tokens=stats.tokens,
        requests=stats.requests,
        requests_done=stats.requests_done,
        rows=stats.rows_in_use,
        rows_max=stats.rows_max,
        rows_limit=stats.rows_limit,
        queued=stats.queued,
        kv_bytes=stats.kv_bytes_in_use,
        kv_bytes_limit=stats.kv_bytes_limit,
        kv_bytes_copied_between_frames=stats.kv_bytes_copied_between_frames,
        budget_left=budget_left(stats),
    )
    message.header.stamp = time_msg(report.now_ns)
    message.dropped = key_values(report.dropped)
    message.ended = key_values(stats.requests_ended)
    message.effective = key_values(effective)
    return message


def budget_left(stats: EngineStats) -> int:
    """Decode steps the current frame may still use, -1 unlimited."""
    return -1 if stats.budget_steps < 0 else max(stats.budget_steps - stats.budget_used, 0)


def diagnostics_msg(report: Report, status: msg.EngineStatus, name: str) -> DiagnosticArray:
    """One entry for the robot's monitor: OK when serving or inactive, WARN, ERROR when failed."""
    level = {
        'serving': DiagnosticStatus.OK,
        'inactive': DiagnosticStatus.OK,
        'failed': DiagnosticStatus.ERROR,
    }.get(report.state, DiagnosticStatus.WARN)
    if report.state == 'serving' and report.detail:
        level = DiagnosticStatus.WARN
    message = f'{report.state}: {report.detail}' if report.detail else report.state
    shown = {
        'frames_per_s': status.frames_per_s,
        'actions_per_s': status.actions_per_s,
        'action_stream_hz': status.action_stream_hz,
        'tokens_per_s': status.tokens_per_s,
        'camera_to_chunk_ms': round(status.camera_to_chunk_ms, 1),
        'rows': status.rows,
        'queued': status.queued,
        'kv_bytes': status.kv_bytes,
        'budget_left': status.budget_left,
        'missed_ticks': report.missed_ticks,
        **{f'dropped {reason}': count for reason, count in report.dropped.items()},
    }
    entry = DiagnosticStatus(
        level=level,
        name=f'{name}: engine',
        message=message,
        hardware_id=name,
        values=key_values(shown),
    )
    array = DiagnosticArray(status=[entry])
    array.header.stamp = time_msg(report.now_ns)
    return array

"""What the node tells about itself: rates, counts, ~/status."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from oxygen_ros import msg
from oxygen_ros.ros.input_ages import InputState
from oxygen_ros.ros.messages import key_values, time_msg
from oxygen_ros.ros.parameters import Value
from oxygen_ros.ros.word_waits import WordWaits
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


class Spread:
    """Percentiles of the last 2048 values. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: deque[float] = deque(maxlen=2048)

    def add(self, value: float) -> None:
        """One more value."""
        with self._lock:
            self._values.append(value)

    def percentiles(self) -> dict[str, float]:
        """p50, p95, p99 and max; empty without values."""
        with self._lock:
            values = np.array(self._values)
        if not values.size:
            return {}
        found = (*np.percentile(values, (50, 95, 99)), values.max())
        return {
            name: round(float(value), 3)
            for name, value in zip(('p50', 'p95', 'p99', 'max'), found, strict=True)
        }


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
    """One moment of the node, from which both messages are made.

    robot, inputs and stream (the action stream's state) are empty while the node is not active.
    motion: numbers of the seams and limits, by the names in ~/status.
    problems: what is wrong with the 'engine' and the 'action stream' themselves, by these names.
    images: 'used' in observations and 'held' for the next one; the others are in dropped.
    """

    now_ns: int
    state: str
    detail: str
    values: Mapping[str, Value]
    stats: EngineStats
    effective: Mapping[str, str]
    dropped: Mapping[str, int]
    missed_ticks: int
    robot: str = ''
    inputs: Sequence[InputState] = ()
    stream: str = ''
    overhead_ms: Mapping[str, float] = field(default_factory=dict)
    images: Mapping[str, int] = field(default_factory=dict)
    motion: Mapping[str, object] = field(default_factory=dict)
    words: WordWaits = field(default_factory=WordWaits)
    problems: Mapping[str, str] = field(default_factory=dict)


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
        seam_jump=report.motion.get('seam_jump', 0.0),
        seam_joint=report.motion.get('seam_joint', ''),
        steps_limited=report.motion.get('steps_limited', 0),
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
        budget_left=stats.budget_steps,
    )
    message.header.stamp = time_msg(report.now_ns)
    message.dropped = key_values(report.dropped)
    message.ended = key_values(stats.requests_ended)
    message.effective = key_values(effective)
    return message

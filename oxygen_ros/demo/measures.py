"""What a subscriber measures of the node, from messages alone."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from oxygen_ros import msg
from oxygen_ros.ros.conversions import stamp_ns
from oxygen_ros.ros.diagnostics import Meter

KEPT_CHARS = 500


@dataclass
class Answer:
    """The newest answer of a task, as far as it has come."""

    request_id: str = ''
    frame: int = -1
    text: str = ''


@dataclass
class Live:
    """Rates of the last second."""

    chunks: Meter = field(default_factory=Meter)
    actions: Meter = field(default_factory=Meter)
    stream: Meter = field(default_factory=Meter)
    tokens: Meter = field(default_factory=Meter)


class Measures:
    """Counts, rates and latencies; callbacks come from one thread, readers from another.

    Times are ns of the subscriber's clock, on which the recording's stamps were made.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self.live = Live()
        self.answers = {task: Answer() for task in tasks}
        self.status: msg.EngineStatus | None = None
        self.chunks = self.actions = self.tokens = 0
        self._first_frame = 0  # number of the first frame whose chunk was heard
        self.ended: Counter[str] = Counter()
        self._latency_ms: list[float] = []
        self._chunk_ns: list[int] = []  # first and last arrival
        self._step_ns: list[int] = []
        self._steps = 0
        self._kv_bytes_max = 0
        self._closed = False

    def on_chunk(self, chunk: msg.ActionChunk, now_ns: int) -> None:
        """A chunk arrived now."""
        with self._lock:
            if self._closed:
                return
            if not self.chunks:
                self._first_frame = chunk.frame
            self.chunks += 1
            self.actions += chunk.horizon
            self._latency_ms.append((now_ns - stamp_ns(chunk.header)) / 1e6)
            self._chunk_ns = [self._chunk_ns[0] if self._chunk_ns else now_ns, now_ns]
        self.live.chunks.add()
        self.live.actions.add(chunk.horizon)

    def on_step(self, now_ns: int) -> None:
        """A single action arrived now."""
        with self._lock:
            self._steps += 1
            self._step_ns = [self._step_ns[0] if self._step_ns else now_ns, now_ns]
        self.live.stream.add()

    def on_token(self, token: msg.LanguageToken) -> None:
        """A word of an answer, or its end."""
        with self._lock:
            answer = self.answers[token.task]
            if token.id != answer.request_id:
                answer.request_id, answer.frame, answer.text = token.id, token.frame, ''
            if token.reason not in ('refused', 'failed'):
                answer.text = (answer.text + token.text)[-KEPT_CHARS:]
            counted = int(token.token >= 0)
            self.tokens += counted
            if token.final:
                self.ended[token.reason] += 1
        self.live.tokens.add(counted)

    def on_status(self, status: msg.EngineStatus) -> None:
        """The node's own account."""
        with self._lock:
            self.status = status
            self._kv_bytes_max = max(self._kv_bytes_max, status.kv_bytes)

    def close(self) -> None:
        """Count no more chunks, so that the node's counters can catch up with them."""
        with self._lock:
            self._closed = True

    def complete(self) -> bool:
        """Whether the newest status knows of every counted chunk."""
        with self._lock:
            return self._frames() >= self.chunks

    def requests_done(self) -> int:
        """Answers that came to their end."""
        return self.ended['stop'] + self.ended['length']

    def serving_s(self) -> float:
        """Seconds between the first and the newest chunk."""
        with self._lock:
            return _span_s(self._chunk_ns)

    def _frames(self) -> int:
        """Frames the node had taken by the newest status, from the first that was heard."""
        return max(self.status.frames - self._first_frame, 0) if self.status else 0

    def summary(self) -> dict[str, Any]:
        """The numbers of the whole run; rates are means from the first chunk to the last."""
        with self._lock:
            span_s, status = _span_s(self._chunk_ns), self.status
            return {
                'seconds': round(span_s, 2),
                'frames': self._frames(),
                'chunks': self.chunks,
                'frames_per_s': _rate(self.chunks - 1, span_s),
                'actions_per_s': _rate(self.actions * (1 - 1 / max(self.chunks, 1)), span_s),
                'action_stream_hz': _rate(self._steps - 1, _span_s(self._step_ns)),
                'tokens': self.tokens,
                'tok_per_s': _rate(self.tokens, span_s),
                'requests_done': self.requests_done(),
                'requests_refused': self.ended['refused'],
                'rows_max': status.rows_max if status else 0,
                'kv_bytes_max': self._kv_bytes_max,
                'camera_to_chunk_ms_p50': percentile(self._latency_ms, 50),
                'camera_to_chunk_ms_p99': percentile(self._latency_ms, 99),
                'dropped': {d.key: int(d.value) for d in status.dropped} if status else {},
            }


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile, rounded to 0.01; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = max(math.ceil(len(ordered) * percent / 100), 1)
    return round(ordered[rank - 1], 2)


def _span_s(ends_ns: Sequence[int]) -> float:
    return (ends_ns[-1] - ends_ns[0]) / 1e9 if len(ends_ns) > 1 else 0.0


def _rate(count: float, seconds: float) -> float:
    return round(count / seconds, 2) if seconds > 0 else 0.0

"""What this machine took: never part of the report that two runs share, see report.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oxygen_ros.replay.numbers import rounded, spread


class Work(NamedTuple):
    """One piece of work: 'prefill', 'act', 'admit' or 'decode', in ns of a steady clock.

    rows: language rows that it advanced.
    """

    phase: str
    began_ns: int
    ended_ns: int
    rows: int


@dataclass
class Measured:
    """Times of one replay. latency: camera to chunk; first_token: request to its first token.

    On the bag's timeline both are what the bag says until the frame is whole, and then what this
    machine took for that frame alone; on the live one they are measured from end to end.
    """

    wall_s: float = 0.0
    busy_s: float = 0.0
    tokens: int = 0
    frame_ms: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    first_token_ms: list[float] = field(default_factory=list)
    work: Sequence[Work] = ()

    def report(self, duration_s: float) -> dict[str, Any]:
        """As plain data."""
        return {
            'wall_s': rounded(self.wall_s),
            'times_real_time': rounded(duration_s / self.wall_s) if self.wall_s else None,
            'frame_ms': spread(self.frame_ms),
            'camera_to_chunk_ms': spread(self.latency_ms),
            'first_token_ms': spread(self.first_token_ms),
            'tok_per_s': rounded(self.tokens / self.busy_s) if self.busy_s else None,
        }

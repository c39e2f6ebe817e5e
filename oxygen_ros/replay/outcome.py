"""What a replay came to, whichever timeline it ran on; reports are made from this alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxygen_ros.replay.measured import Measured
from oxygen_ros.replay.recorded import RecordedMotion, Said
from oxygen_ros.replay.stream import Streamed
from oxygen_ros.types import ActionChunk, Reason

# Beyond this, stamps and record times are on two clocks and their difference is no delay.
OTHER_CLOCK_NS = 60_000_000_000


@dataclass
class Frame:
    """An observation that the policy took, and its chunk, in robot units, once it is answered.

    time_ns: when it was whole, on the bag's record times. segment: of the recorded motion.
    """

    frame: int
    time_ns: int
    stamp_ns: int
    cameras: tuple[str, ...]
    segment: int = 0
    chunk: ActionChunk | None = None


@dataclass
class Answer:
    """A language request and what came of it; reason stays None if the bag ends first.

    first_ns: when its first token came, on the bag's record times; None before.
    """

    request_id: str
    task: str
    prompt: str
    time_ns: int
    frame: int = -1
    stamp_ns: int = 0
    tokens: list[int] = field(default_factory=list)
    text: str = ''
    reason: Reason | None = None
    detail: str = ''
    first_ns: int | None = None


@dataclass
class Outcome:
    """Everything that reports and pages are made from.

    problem: why the rest of the bag could not be used, or ''. model and effective: what the
    policy said of itself. images: used and waiting. seams: frame -> float64 [A]. chunk_gaps:
    chunks that came when the one before had run out. engine: the engine's counters.
    """

    timeline: str
    model: Mapping[str, Any]
    effective: Mapping[str, str]
    frames: list[Frame]
    answers: list[Answer]
    motion: RecordedMotion
    said: Said
    streamed: Streamed
    measured: Measured
    seams: dict[int, np.ndarray] = field(default_factory=dict)
    chunk_gaps: int = 0
    images: dict[str, int] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, int] = field(default_factory=dict)
    engine: dict[str, int] = field(default_factory=dict)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problem: str = ''

    @property
    def answered(self) -> list[Frame]:
        """Frames that have a chunk."""
        return [frame for frame in self.frames if frame.chunk is not None]

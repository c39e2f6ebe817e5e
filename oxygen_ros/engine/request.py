"""What the scheduler moves: frames and language requests, and the limits they live under."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from oxygen_ros.types import LanguageRequest


@dataclass(frozen=True)
class Mode:
    """share_prefill: one prefill per frame, not per task. batch: language decodes together."""

    name: str
    share_prefill: bool
    batch: bool


MODES = {
    'isolated': Mode('isolated', share_prefill=False, batch=False),
    'shared_kv': Mode('shared_kv', share_prefill=True, batch=False),
    'continuous': Mode('continuous', share_prefill=True, batch=True),
}


@dataclass(frozen=True)
class Limits:
    """Fixed at configure: what does not fit is refused.

    max_rows: language rows. max_queue: requests without a frame. The rest: tokens per request.
    """

    max_rows: int
    max_queue: int
    max_prompt_tokens: int
    max_new_tokens: int


class Phase(enum.Enum):
    """A request is queued, then attached (has a frame), decoding (has a row), ended."""

    QUEUED = 'queued'
    ATTACHED = 'attached'
    DECODING = 'decoding'
    ENDED = 'ended'


@dataclass
class FrameState:
    """One observation on its way through the engine."""

    number: int
    stamp_ns: int
    inputs: Any  # the model's own input type, made by processing
    noise: Any  # float32 [H, A_padded], torch, CPU
    anchor: Any = None  # what the caller needs to read the actions, passed through
    guide: Any = None  # models.guidance.Guide, for real-time chunking
    prefilled: Any = None  # models.base.Prefilled, set by the runner


@dataclass
class RequestState:
    """One language request on its way through the engine."""

    request: LanguageRequest
    prompt_tokens: list[int]  # behind the prefix, may be empty
    order: int  # arrival number, breaks ties of priority
    deadline_ns: int | None  # on the engine's clock
    phase: Phase = Phase.QUEUED
    frame: FrameState | None = None  # set when attached
    source_row: int | None = None  # row of the frame's shared prefix, held until admitted
    row: int | None = None  # row it writes to, set when admitted
    length: int = 0  # slots of the row in use
    position_offset: int = 0  # position of a slot minus the slot
    tokens: list[int] = field(default_factory=list)  # generated so far
    cancelled: bool = False

    @property
    def id(self) -> str:
        """The caller's request id."""
        return self.request.request_id

    @property
    def rows(self) -> set[int]:
        """Every row it holds."""
        return {row for row in (self.source_row, self.row) if row is not None}

"""What crosses the package's borders: observations in, action chunks and words out.

Imports numpy only. Letters: B rows, S prefix tokens, T generated tokens, H action horizon,
A action dimension of the robot. Times are integer nanoseconds: `stamp_ns` on the clock of the
message that brought the data, `began_ns` and `ended_ns` on the clock given to the policy.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


class OxygenError(ValueError):
    """Something a user can mend: says what was given, what is allowed and what to change."""


class Reason(str, enum.Enum):
    """Why a language request's last delta is its last."""

    STOP = 'stop'  # the model ended its answer
    LENGTH = 'length'  # max_tokens reached
    CANCELLED = 'cancelled'  # asked for by the caller
    EXPIRED = 'expired'  # its deadline passed
    FAILED = 'failed'  # non-finite logits, or the engine broke; text says what
    REFUSED = 'refused'  # never started; text says why and what to change


@dataclass(frozen=True)
class Observation:
    """One frame as the robot saw it.

    images: camera slot name -> uint8 [height, width, 3] RGB; a slot that is absent is not a key.
    state: float32 [state_dim] in robot units, in the order of the checkpoint's state.
    instruction: the task the robot is on, plain text.
    stamp_ns: stamp of the newest image; names the frame on every output.
    """

    images: Mapping[str, np.ndarray]
    state: np.ndarray
    instruction: str
    stamp_ns: int = 0


@dataclass(frozen=True)
class ActionChunk:
    """The answer of the action task. actions: float32 [H, A] in robot units."""

    actions: np.ndarray
    frame: int
    stamp_ns: int
    began_ns: int
    ended_ns: int


@dataclass(frozen=True)
class Overlap:
    """What the running chunk still holds when a frame is taken, for real-time chunking.

    actions: float32 [n, A] in robot units, n <= H; row 0 is due when row 0 of the new chunk is.
    delay: how many of these rows will have been executed before the new chunk is there.
    """

    actions: np.ndarray
    delay: int


@dataclass(frozen=True)
class FrameDropped:
    """A frame that was taken but will have no chunk, and why."""

    frame: int
    stamp_ns: int
    problem: str


@dataclass(frozen=True)
class LanguageRequest:
    """What is asked in words of the next frame.

    prompt is appended to the frame's prefix. temperature 0 is greedy; top_p in (0, 1].
    Higher priority is admitted first. deadline_ns counts from the request's arrival, 0 is none.
    """

    request_id: str
    task: str = 'conversation'
    prompt: str = ''
    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    priority: int = 0
    deadline_ns: int = 0

    def problem(self) -> str:
        """What is wrong with the request's own fields, or an empty string."""
        if not self.request_id:
            return 'request_id is empty: give every request an id of its own'
        if self.max_tokens < 1:
            return f'max_tokens is {self.max_tokens}: must be at least 1'
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0):
            return f'temperature is {self.temperature}: must be a number from 0 (greedy) to 100'
        if not (math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0):
            return f'top_p is {self.top_p}: must be above 0 and at most 1'
        if self.deadline_ns < 0:
            return f'deadline is {self.deadline_ns} ns: must not be negative (0 is none)'
        return ''


@dataclass(frozen=True)
class TokenDelta:
    """One token of an answer, or its end.

    frame and stamp_ns name the observation it speaks of (-1 and 0 when it never had one).
    index counts the answer's tokens from 0. token_id is -1 on a delta that only ends the answer.
    text is what this token adds; on failed and refused it is the explanation.
    """

    request_id: str
    task: str
    frame: int
    stamp_ns: int
    index: int
    token_id: int
    text: str
    final: bool = False
    reason: Reason | None = None
    began_ns: int = 0
    ended_ns: int = 0


@dataclass(frozen=True)
class PolicyInfo:
    """What a loaded (or merely inspected) checkpoint expects and gives.

    cameras: slot names in model order. state_dim and action_dim: of the robot, not padded.
    horizon: H. max_prefix_tokens: the longest S. effective: every option as it really is.
    no_overlap: why a frame cannot continue the running chunk (Overlap), or ''.
    """

    family: str
    cameras: tuple[str, ...]
    state_dim: int
    action_dim: int
    horizon: int
    max_prefix_tokens: int
    effective: Mapping[str, str] = field(default_factory=dict)
    no_overlap: str = ''


class Verdict(str, enum.Enum):
    """What a check came to; a misfit refuses the start."""

    OK = 'ok'
    NOTE = 'note'
    MISFIT = 'misfit'


@dataclass(frozen=True)
class Finding:
    """One line of a pre-flight. detail: the names it is about, and what to change."""

    check: str
    found: str
    needed: str
    verdict: Verdict = Verdict.OK
    detail: str = ''

    @property
    def text(self) -> str:
        """One sentence, for a log."""
        return f'{self.check}: {self.detail or f"{self.found}, needed: {self.needed}"}'


@dataclass(frozen=True)
class EngineStats:
    """Counters and gauges since the policy was made. Counters never fall.

    frames: action chunks asked for / answered / refused. dropped: reason -> how many.
    """

    frames: int = 0
    chunks: int = 0
    requests: int = 0
    requests_done: int = 0  # ended with stop or length
    requests_ended: Mapping[str, int] = field(default_factory=dict)  # reason -> count
    tokens: int = 0
    prefills: int = 0
    decode_steps: int = 0
    forks: int = 0
    fork_bytes: int = 0
    kv_bytes_copied_between_frames: int = 0
    truncated_instructions: int = 0
    tasks_skipped: Mapping[str, int] = field(default_factory=dict)  # task -> backlog was full
    queued: int = 0
    rows_in_use: int = 0
    rows_max: int = 0  # most language rows decoded in one step
    rows_limit: int = 0
    to_admit: int = 0  # of rows_in_use: their first token is what comes next
    kv_bytes_in_use: int = 0
    kv_bytes_limit: int = 0
    budget_steps: int = 0  # decode steps the current frame may still use, -1 unlimited
    budget_used: int = 0  # decode steps used since the current frame's chunk
    step_ms: Mapping[str, float] = field(default_factory=dict)  # phase -> last measured
    execution: str = ''  # how the model is run
    fallback: str = ''  # why that is not what was asked for, or empty
    captures_after_ready: int = 0  # compilations since, must stay 0

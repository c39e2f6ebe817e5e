"""The one surface that ROS, replay and benchmarks call: Observation in, chunks and words out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oxygen_ros.types import (
    ActionChunk,
    EngineStats,
    LanguageRequest,
    Observation,
    PolicyInfo,
    TokenDelta,
)


@dataclass(frozen=True)
class PolicyOptions:
    """How a checkpoint is run; the defaults are the node's defaults.

    mode: 'isolated', 'shared_kv' or 'continuous'.
    budget: decode steps per frame as a number, 'auto', or 'unlimited'.
    max_rows: language rows decoded together. max_queue: requests that may wait for a frame.
    max_prompt_tokens, max_new_tokens: longest request. max_kv_mb: KV pool, refused if it is more.
    """

    mode: str = 'continuous'
    budget: int | str = 5
    device: str = 'cpu'
    dtype: str = 'float32'
    denoise_steps: int = 10
    seed: int = 0
    max_rows: int = 8
    max_queue: int = 32
    max_prompt_tokens: int = 64
    max_new_tokens: int = 256
    max_kv_mb: int = 4096


class Policy:
    """A loaded checkpoint that answers frames. Not thread-safe: one thread calls it."""

    info: PolicyInfo

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        options: PolicyOptions | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        progress: Callable[[str, float], None] | None = None,
        **overrides,
    ) -> Policy:
        """Load a checkpoint folder. Overrides are fields of PolicyOptions.

        progress(text, fraction) is called while loading and warming up. Raises OxygenError.
        """
        raise NotImplementedError

    @staticmethod
    def inspect(path: str | Path) -> PolicyInfo:
        """Read a checkpoint's description without its weights. Raises OxygenError."""
        raise NotImplementedError

    def act(
        self,
        observation: Observation,
        noise: np.ndarray | None = None,
        requests: Iterable[LanguageRequest] = (),
    ) -> ActionChunk:
        """Answer one frame now; decode steps that are due before it are not run. Raises OxygenError.

        noise: float32 [H, A_padded], drawn from (seed, stamp_ns) when not given.
        """
        raise NotImplementedError

    def stream(self) -> Iterator[TokenDelta]:
        """Run decode steps, whatever the budget, until no admitted request is left."""
        raise NotImplementedError

    def observe(self, observation: Observation, noise: np.ndarray | None = None) -> int:
        """Queue a frame for step() and return its number; raises OxygenError if it cannot be used.

        A frame that waits already is replaced (newest wins) and counted as dropped.
        """
        raise NotImplementedError

    def submit(self, request: LanguageRequest) -> None:
        """Queue a request for the next frame; a refusal comes as a TokenDelta from step()."""
        raise NotImplementedError

    def cancel(self, request_id: str = '') -> int:
        """End a request, or all of them for ''; returns how many. Their last deltas come from step()."""
        raise NotImplementedError

    def step(self) -> list[ActionChunk | TokenDelta]:
        """Do the next unit of work: a frame (prefill and actions), an admission, or a decode step.

        Actions always come before words. Returns at once with [] when nothing is due.
        """
        raise NotImplementedError

    @property
    def idle(self) -> bool:
        """True when step() would do nothing until a frame, a request or grant() comes."""
        raise NotImplementedError

    def grant(self) -> None:
        """Refill the decode budget as a frame would: called by a timer when no frame arrives."""
        raise NotImplementedError

    def reset(self) -> None:
        """New episode: cancel all language and forget the waiting frame."""
        raise NotImplementedError

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges."""
        raise NotImplementedError

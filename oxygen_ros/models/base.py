"""What the engine asks of a model family, and nothing more.

Letters: B rows, n tokens, S prefix tokens, H horizon, A padded action dimension, W width, V words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from oxygen_ros.models.guidance import Guide
from oxygen_ros.models.kv import KVWindow, PoolCache


@dataclass(frozen=True)
class ModelSpec:
    """Sizes the engine allocates by.

    max_prefix: longest S. suffix_slots: slots behind the prefix that the action head writes while
    it works. eos_ids: tokens that end an answer.
    """

    layers: int
    kv_heads: int
    head_dim: int
    horizon: int
    action_dim: int
    vocab_size: int
    max_prefix: int
    suffix_slots: int
    eos_ids: frozenset[int]


@dataclass(frozen=True)
class Prefilled:
    """What a prefill leaves beside the KV in its row.

    length: slots of the row in use. position_offset: position of the next token minus `length`
    (not 0 where image tokens share positions). last_hidden: [W] at the last prefix token, after
    the final norm: an answer without prompt words starts from it. extras: what only this family's
    head reads.
    """

    length: int
    position_offset: int
    last_hidden: torch.Tensor
    extras: dict[str, Any] = field(default_factory=dict)


class NoChunk(RuntimeError):
    """Raised by act(): the model is well, but its answer to this frame holds no actions."""


FixedInputs = tuple[torch.Tensor, ...]  # one frame's inputs, padded to a shape that recurs


class VLAModel(Protocol):
    """One family. Methods run without gradients, on the model's own device."""

    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype

    def prefix_length(self, inputs: Any) -> int:
        """Slots that prefill() writes for one frame's inputs, without computing anything.

        S, and what the action branch has computed along with it behind the prefix.
        """
        ...

    def prefill(self, inputs: Any, kv: KVWindow) -> Prefilled:
        """Compute one frame's prefix into a window that starts at slot 0."""
        ...

    def act(
        self,
        prefilled: Prefilled,
        kv: KVWindow,
        noise: torch.Tensor,
        steps: int,
        guide: Guide | None = None,
    ) -> torch.Tensor:
        """Denoise [H, A] in `steps` Euler steps; the window lies right behind the prefix.

        guide: rows that the chunk should meet because the last one is still being executed.
        """
        ...

    def extend(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, kv: KVWindow
    ) -> torch.Tensor:
        """Append tokens [B, n] at positions [B, n] -> hidden [B, n, W] after the final norm.

        mask: bool [B, 1, n, window length], True where a query may read a slot.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden [B, W] -> logits [B, V] in float32."""
        ...


@runtime_checkable
class FastLayers(Protocol):
    """A family whose layers can be run in other ways that give the same numbers up to rounding."""

    def use_layers(self, kind: str) -> None:
        """'plain' is the reference, 'fused' has fewer kernels, 'compiled' compiles the prefix's.

        'all_compiled' compiles those of the action loop and of decode steps as well.
        """
        ...


@runtime_checkable
class FixedShapes(Protocol):
    """A family whose prefix fits into a few shapes, so that it can be captured once for ever.

    Here the number of valid tokens, `length`, is data: a tensor [1]. Slot and position of a token
    are the same.
    """

    def fixed_shapes(self) -> list[FixedInputs]:
        """Blank inputs of every shape that fixed_inputs() may give."""
        ...

    def fixed_inputs(self, inputs: Any) -> FixedInputs:
        """A frame's inputs, padded; on the CPU."""
        ...

    def prefill_fixed(
        self, inputs: FixedInputs, length: torch.Tensor, kv: PoolCache
    ) -> torch.Tensor:
        """Inputs on the device, their valid tokens -> last_hidden [W], as Prefilled has it."""
        ...

    def act_fixed(
        self, length: torch.Tensor, kv: PoolCache, noise: torch.Tensor, steps: int
    ) -> torch.Tensor:
        """As act() without a guide; queries may read what `kv.mask` says."""
        ...

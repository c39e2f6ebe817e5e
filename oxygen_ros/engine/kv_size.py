"""How large the KV pool is: computed once, for the engine and for whoever asks before it is made.

No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oxygen_ros.engine.request import Limits
from oxygen_ros.types import OxygenError

if TYPE_CHECKING:
    from oxygen_ros.models.base import ModelSpec


@dataclass(frozen=True)
class KVSize:
    """rows of capacity tokens each, and the bytes of one token's keys and values in all layers."""

    rows: int
    capacity: int
    slot_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, its scratch slot included."""
        return (self.capacity + 1) * self.slot_bytes

    @property
    def bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.rows * self.row_bytes

    def check(self, limit_bytes: int) -> None:
        """Raise OxygenError if the pool is larger than the limit."""
        if self.bytes > limit_bytes:
            raise OxygenError(
                f'{self.rows} KV rows of {self.capacity} tokens need {self.bytes / 2**20:.0f} MB, '
                f'the limit is {limit_bytes / 2**20:.0f} MB: lower max_rows, max_prompt_tokens or '
                'max_new_tokens, or raise max_kv_mb'
            )


def slot_bytes(spec: ModelSpec, value_bytes: int) -> int:
    """Bytes of one token's keys and values in all layers; value_bytes of one number."""
    return 2 * spec.layers * spec.kv_heads * spec.head_dim * value_bytes


def kv_size(spec: ModelSpec, limits: Limits, value_bytes: int) -> KVSize:
    """Size of the pool that serves these limits; value_bytes of one number."""
    rows = limits.max_rows + 1  # one is always left for the next frame
    behind = max(spec.suffix_slots, limits.max_prompt_tokens + limits.max_new_tokens)
    return KVSize(rows, spec.max_prefix + behind, slot_bytes(spec, value_bytes))

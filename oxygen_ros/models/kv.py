"""The pool as transformers sees it: a Cache written in place, an attention that reads in place.

A decoder layer calls `cache.update(k, v, layer)`, which stores the new tokens in the pool and
returns views of it, and then the attention function registered here under ATTENTION.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, Cache

ATTENTION = 'oxygen_pool'


class PoolCache(Cache):
    """Part of the pool behind transformers' Cache interface; owns nothing.

    mask: what an action head's queries may read, bool [1, 1, 1, slots]; None for all of it.
    """

    def __init__(
        self,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        mask: torch.Tensor | None = None,
    ) -> None:
        super().__init__(layers=[])
        self.mask = mask
        self._keys, self._values = keys, values

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take new tokens [B, KV heads, n, D]; return what attention reads, with them."""
        return (
            self._take(self._keys[layer_idx], key_states),
            self._take(self._values[layer_idx], value_states),
        )

    def reading(self) -> PoolCache:
        """The same slots, read only: for tokens whose keys and values are stored already."""
        raise NotImplementedError(f'{type(self).__name__} cannot be read without writing')

    def _take(self, pool: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class KVWindow(PoolCache):
    """Some rows of the pool: where the next tokens go, and how far attention reads.

    Without slots (one row): n tokens go to start .. start + n. With slots [B, n]: each token goes
    to its own slot. Reads slots 0 .. length of its rows, the new ones included, in place.
    """

    def __init__(
        self,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        rows: slice,
        length: int,
        start: int = 0,
        slots: torch.Tensor | None = None,
    ) -> None:
        super().__init__(keys, values)
        self.rows, self.length, self.start = rows, length, start
        self._index: tuple[torch.Tensor, torch.Tensor] | None = None
        if slots is not None:
            row_numbers = torch.arange(rows.start, rows.stop, device=slots.device)
            self._index = (row_numbers[:, None], slots)

    def starting_at(self, start: int) -> KVWindow:
        """The same row and length, with new tokens from slot `start` on."""
        return KVWindow(self._keys, self._values, self.rows, self.length, start)

    def next_tokens(self, count: int) -> KVWindow:
        """The same row and start, read no further than so many new tokens."""
        return KVWindow(self._keys, self._values, self.rows, self.start + count, self.start)

    def reading(self) -> _Reader:
        """See PoolCache."""
        return _Reader(self._keys, self._values, self.rows, self.length)

    def concatenating(self) -> PrefixView:
        """What was there before, for a forward whose gradient is wanted; the pool is as it was."""
        return PrefixView(self._keys, self._values, self.rows, self.start)

    def _take(self, pool: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        if self._index is None:
            pool[self.rows, :, self.start : self.start + new.shape[2]] = new
        else:
            pool.transpose(1, 2)[self._index] = new.transpose(1, 2)
        return pool[self.rows, :, : self.length]


class PrefixView(PoolCache):
    """The slots before `length` of some rows, read only: new tokens are joined on, not stored."""

    def __init__(
        self, keys: list[torch.Tensor], values: list[torch.Tensor], rows: slice, length: int
    ) -> None:
        super().__init__(keys, values)
        self._rows, self._length = rows, length

    def _take(self, pool: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.cat([pool[self._rows, :, : self._length], new], dim=2)


class _Reader(PrefixView):
    """The slots before `length` of some rows; what is given is in them already."""

    def _take(self, pool: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return pool[self._rows, :, : self._length]


class NewRow(PoolCache):
    """A prefix into a row that a tensor names [1], from slot 0 on, so that shapes and addresses
    are the same for every row. Attention reads the new tokens as they are: nothing else is there.
    """

    def __init__(
        self, keys: list[torch.Tensor], values: list[torch.Tensor], row: torch.Tensor
    ) -> None:
        super().__init__(keys, values)
        self._row = row

    def _take(self, pool: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        pool[:, :, : new.shape[2]].index_copy_(0, self._row, new)
        return new


class StagedRow(PoolCache):
    """A copy of the first slots of a row that a tensor names [1], for an action head.

    Its tokens go to the slots from `start`, a tensor [1], on: shapes and addresses are the same
    for every row and prefix. slots: length of the copy, the head's tokens included.
    """

    def __init__(
        self,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        row: torch.Tensor,
        start: torch.Tensor,
        slots: int,
        tokens: int,
    ) -> None:
        staged = [[pool[:, :, :slots].index_select(0, row) for pool in p] for p in (keys, values)]
        super().__init__(*staged)
        places = torch.arange(slots, device=row.device)
        self.mask = (places < start + tokens)[None, None, None]
        self._places = start + torch.arange(tokens, device=row.device)

    def _take(self, pool: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return pool.index_copy_(2, self._places, new)


def pool_attention(
    module: torch.nn.Module | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Grouped-query attention without expanding keys: query heads of a group become more queries.

    query [B, heads, n, D], key and value [B, KV heads, length, D], mask [B, 1, n or 1, length],
    bool or as bias_of() makes it, or None for all -> [B, n, heads, D].
    """
    rows, heads, tokens, width = query.shape
    groups = heads // key.shape[1]
    query = query.reshape(rows, key.shape[1], groups * tokens, width)
    if attention_mask is not None and attention_mask.shape[2] > 1:
        attention_mask = attention_mask.repeat(1, 1, groups, 1)
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling
    )
    return output.view(rows, heads, tokens, width).transpose(1, 2), None


def bias_of(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """What attention makes of a bool mask in every call, made once: 0 or -inf, as the query is."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    slots = mask.shape[-1]
    aligned = -(-slots // 8) * 8  # or a GPU's kernel pads it in every call
    bias = query.new_full((*mask.shape[:-1], aligned), -torch.inf)[..., :slots]
    return bias.masked_fill_(mask, 0.0)


AttentionInterface.register(ATTENTION, pool_attention)

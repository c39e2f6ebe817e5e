"""The memory behind the ledger: per layer one tensor of keys and one of values."""

from __future__ import annotations

import torch

from oxygen_ros.engine.kv_size import slot_bytes
from oxygen_ros.models.base import ModelSpec
from oxygen_ros.models.kv import KVWindow, NewRow, StagedRow


class KVPool:
    """Keys and values of all rows, allocated once: [rows, KV heads, capacity + 1, D] a layer.

    The last slot of each row is scratch: padding and idle rows write there, nobody reads it.
    A token of a row at position p of its sequence lies in slot p; slots behind a row's length hold
    old but finite numbers, which masks hide.
    """

    def __init__(
        self, spec: ModelSpec, rows: int, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (rows, spec.kv_heads, capacity + 1, spec.head_dim)
        self.rows, self.capacity = rows, capacity
        self.slot_bytes = slot_bytes(spec, dtype.itemsize)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(spec.layers)]
        self.values = [torch.zeros_like(key) for key in self.keys]
        self.forks = 0
        self.fork_bytes = 0  # copied within one frame
        self.bytes_between_frames = 0  # must stay 0
        self._tainted: set[int] = set()

    def window(self, row: int, start: int, tokens: int) -> KVWindow:
        """One row: writes slots start .. start + tokens, reads all up to there."""
        assert start + tokens <= self.capacity, f'{start} + {tokens} slots of {self.capacity}'
        if start == 0:
            self.renew(row)
        return KVWindow(self.keys, self.values, slice(row, row + 1), start + tokens, start=start)

    def batch_window(self, rows: int, slots: torch.Tensor, length: int) -> KVWindow:
        """Rows 0 .. rows: writes slots [rows, n], reads the first `length` slots of each."""
        return KVWindow(self.keys, self.values, slice(0, rows), length, slots=slots)

    def new_row(self, row: torch.Tensor) -> NewRow:
        """A row that a tensor names [1], for a prefix of fixed shape; renew() it first."""
        return NewRow(self.keys, self.values, row)

    def staged_row(self, row: torch.Tensor, start: torch.Tensor, tokens: int) -> StagedRow:
        """The whole row that a tensor names [1], for an action head that writes behind `start`."""
        return StagedRow(self.keys, self.values, row, start, self.capacity, tokens)

    def fork(self, source: int, target: int, tokens: int, same_frame: bool) -> None:
        """Write a frame's prefix a second time; a copy for another frame is counted apart."""
        self.renew(target)
        for tensor in [*self.keys, *self.values]:
            tensor[target, :, :tokens] = tensor[source, :, :tokens]
        moved = tokens * self.slot_bytes
        if same_frame:
            self.forks += 1
            self.fork_bytes += moved
        else:
            self.bytes_between_frames += moved

    def taint(self, row: int, start: int) -> None:
        """Note that a row may hold NaN: a masked NaN would still poison its next reader.

        Slots from `start` on are made finite now, the prefix before them (others of the same frame
        may still have to fail by it) when the row is filled anew.
        """
        self._clear(row, start)
        self._tainted.add(row)

    def renew(self, row: int) -> None:
        """Clear what a failed forward may have left in a row."""
        if row in self._tainted:
            self._clear(row, 0)
            self._tainted.remove(row)

    def _clear(self, row: int, start: int) -> None:
        for tensor in [*self.keys, *self.values]:
            tensor[row, :, start:].zero_()

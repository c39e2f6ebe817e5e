"""A runner whose phases have fixed shapes and addresses, captured before the first frame.

Rows, prefix lengths and words are data of a captured function, never shapes of it: nothing is
captured afterwards, whatever the prompts do. The plain runner stays the reference.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from oxygen_ros.engine.captures import Captures, Tensors
from oxygen_ros.engine.kv_pool import KVPool
from oxygen_ros.engine.request import FrameState
from oxygen_ros.engine.runner import Runner, causal_mask
from oxygen_ros.engine.sampler import Best
from oxygen_ros.models.base import FixedInputs, FixedShapes, Prefilled, VLAModel


class FixedRunner(Runner):
    """Raises what a capture raises, when it is made."""

    def __init__(self, model: VLAModel, pool: KVPool, denoise_steps: int) -> None:
        super().__init__(model, pool, denoise_steps)
        self.captures = Captures(model.device)
        self._widths = _widths(pool.rows)
        self._capture()

    @torch.no_grad()
    def _capture(self) -> None:
        """Capture every shape that may ever come. Prompt words of requests stay as they are."""
        scalar = torch.zeros(1, dtype=torch.int64)
        if isinstance(self.model, FixedShapes):
            length = scalar + 1
            for inputs in self.model.fixed_shapes():
                blank = (*inputs, length, scalar)
                self.captures.add(
                    _key(inputs), self._prefill_fixed, blank, _other(blank), self._written()
                )
            spec = self.model.spec
            noise = (torch.zeros(spec.horizon, spec.action_dim), length, scalar)
            self.captures.add('act', self._act_fixed, noise, _other(noise))
        for width in self._widths:
            words = torch.zeros(3, width, 1, dtype=torch.int64)
            other = (torch.ones_like(words),)
            words[0] = self.pool.capacity  # scratch
            self.captures.add(
                ('decode', width), self._decode_fixed, (words,), other, self._written()
            )

    def _written(self) -> Tensors:
        """Of what a forward leaves in the pool, what everything before it has gone into."""
        return self.pool.keys[-1], self.pool.values[-1]

    def prefill(self, frame: FrameState, row: int) -> Prefilled:
        """See Runner; padding is computed, and hidden from everything after it."""
        if not isinstance(self.model, FixedShapes):
            return super().prefill(frame, row)
        inputs = self.model.fixed_inputs(frame.inputs)
        length = self.model.prefix_length(frame.inputs)
        self.pool.renew(row)
        places = (torch.tensor([length]), torch.tensor([row]))
        (hidden,) = self.captures.run(_key(inputs), (*inputs, *places))
        frame.prefilled = Prefilled(length, 0, hidden.clone())
        self.prefills += 1
        return frame.prefilled

    def act(self, frame: FrameState, prefilled: Prefilled, row: int) -> torch.Tensor:
        """See Runner; guidance needs gradients and stays as it is."""
        if not isinstance(self.model, FixedShapes) or frame.guide is not None:
            return super().act(frame, prefilled, row)
        places = (torch.tensor([prefilled.length]), torch.tensor([row]))
        (actions,) = self.captures.run('act', (frame.noise, *places))
        return actions

    def logits(
        self, rows: list[int], inputs: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, Best, Sequence[int]]:
        """See Runner; the logits of all rows stay where the capture put them."""
        width = next(width for width in self._widths if width >= inputs.shape[1])
        idle = torch.zeros(3, width - inputs.shape[1], 1, dtype=torch.int64)
        idle[0] = self.pool.capacity
        logits, *best = self.captures.run(('decode', width), (torch.cat([inputs, idle], dim=1),))
        return logits, (best[0], best[1]), rows

    # -- the functions that are captured

    def _prefill_fixed(self, *given: torch.Tensor) -> Tensors:
        *inputs, length, row = given
        assert isinstance(self.model, FixedShapes)
        return (self.model.prefill_fixed(tuple(inputs), length, self.pool.new_row(row)),)

    def _act_fixed(self, noise: torch.Tensor, length: torch.Tensor, row: torch.Tensor) -> Tensors:
        staged = self.pool.staged_row(row, length, len(noise))
        assert isinstance(self.model, FixedShapes)
        return (self.model.act_fixed(length, staged, noise, self.denoise_steps),)

    def _decode_fixed(self, inputs: torch.Tensor) -> Tensors:
        slots, offsets, words = inputs
        capacity = self.pool.capacity
        window = self.pool.batch_window(len(words), slots, capacity)
        mask = causal_mask(slots, capacity)
        hidden = self.model.extend(words, slots + offsets, mask, window)
        logits = self.model.logits(hidden[:, -1])
        return logits, *logits.max(dim=-1)


def _key(inputs: FixedInputs) -> Hashable:
    """Of a prefix: the shapes of its inputs."""
    return 'prefill', *(tuple(tensor.shape) for tensor in inputs)


def _other(inputs: Tensors) -> Tensors:
    """Valid inputs that differ from blank ones: the next row, length and word, other numbers."""
    return tuple(
        torch.linspace(-1.0, 1.0, tensor.numel()).view_as(tensor)
        if tensor.is_floating_point()
        else tensor + 1
        for tensor in inputs
    )


def _widths(rows: int) -> list[int]:
    """1, 2, 4, ... and all rows."""
    widths = [1]
    while widths[-1] < rows:
        widths.append(min(2 * widths[-1], rows))
    return widths

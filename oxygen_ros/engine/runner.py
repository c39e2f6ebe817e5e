"""Runs the scheduler's plans on the model and the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oxygen_ros.engine.kv_pool import KVPool
from oxygen_ros.engine.request import FrameState
from oxygen_ros.engine.sampler import Best, Sampler
from oxygen_ros.engine.scheduler import Admit, Decode, Serve
from oxygen_ros.models.base import Prefilled, VLAModel


@dataclass(frozen=True)
class Admitted:
    """prefix: tokens of the row's prefix. token: None if the logits were not finite."""

    prefix: int
    position_offset: int
    token: int | None


class Runner:
    """One model, one pool. Methods block until their result is on the host."""

    def __init__(self, model: VLAModel, pool: KVPool, denoise_steps: int) -> None:
        self.model = model
        self.pool = pool
        self.denoise_steps = denoise_steps
        self.sampler = Sampler()
        self.prefills = 0

    @torch.no_grad()
    def serve(self, plan: Serve) -> torch.Tensor:
        """Prefill the frame, run its action task -> [H, A] float32 on the CPU."""
        prefilled = self.prefill(plan.frame, plan.row)
        return self.act(plan.frame, prefilled, plan.row).cpu()

    @torch.no_grad()
    def admit(self, plan: Admit) -> Admitted:
        """Bring the prefix into the request's row, append its prompt, choose the first token."""
        request, frame = plan.request, plan.request.frame
        assert frame is not None
        prefilled = self.prefill(frame, plan.row) if plan.prefill else frame.prefilled
        if plan.fork_from is not None:
            same_frame = plan.source_frame == frame.number
            self.pool.fork(plan.fork_from, plan.row, prefilled.length, same_frame)
        hidden = prefilled.last_hidden[None]
        if request.prompt_tokens:
            hidden = self._extend_one(plan.row, prefilled, request.prompt_tokens)
        logits = self.model.logits(hidden)
        (token,) = self.sampler.sample(logits, logits.max(dim=-1), [0], [request.request])
        return Admitted(prefilled.length, prefilled.position_offset, token)

    @torch.no_grad()
    def decode(self, plan: Decode) -> list[int | None]:
        """One step over rows 0 .. highest in use; rows without a request write to scratch."""
        requests = plan.requests
        rows = [request.row for request in requests if request.row is not None]
        width = max(rows) + 1
        length = max(request.length for request in requests) + 1
        slots, offsets, words = [self.pool.capacity] * width, [0] * width, [0] * width
        for row, request in zip(rows, requests, strict=True):
            slots[row], offsets[row] = request.length, request.position_offset
            words[row] = request.tokens[-1]
        inputs = torch.tensor([slots, offsets, words])[..., None]
        logits, best, places = self.logits(rows, inputs, length)
        return self.sampler.sample(logits, best, places, [state.request for state in requests])

    def prefill(self, frame: FrameState, row: int) -> Prefilled:
        """Compute a frame's prefix into a row; without gradients."""
        length = self.model.prefix_length(frame.inputs)
        frame.prefilled = self.model.prefill(frame.inputs, self.pool.window(row, 0, length))
        self.prefills += 1
        return frame.prefilled

    def act(self, frame: FrameState, prefilled: Prefilled, row: int) -> torch.Tensor:
        """Actions [H, A] of a frame that is prefilled in this row; without gradients."""
        window = self.pool.window(row, prefilled.length, self.model.spec.suffix_slots)
        return self.model.act(prefilled, window, frame.noise, self.denoise_steps, frame.guide)

    def logits(
        self, rows: list[int], inputs: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, Best, Sequence[int]]:
        """One step over rows 0 .. width -> logits, the best of each, and where `rows` are in them.

        inputs: slots, position offsets and words, int64 [3, width, 1] on the CPU. length: slots
        that the longest of the rows has with its new word.
        """
        slots, offsets, words = inputs.to(self.model.device)
        window = self.pool.batch_window(len(words), slots, length)
        mask = causal_mask(slots, length)
        hidden = self.model.extend(words, slots + offsets, mask, window)
        logits = self.model.logits(hidden[rows, -1])
        return logits, logits.max(dim=-1), range(len(rows))

    def _extend_one(self, row: int, prefilled: Prefilled, tokens: list[int]) -> torch.Tensor:
        """Prompt words behind one row's prefix -> hidden [1, W] of the last of them."""
        start, count = prefilled.length, len(tokens)
        words = torch.tensor([tokens], device=self.model.device)
        slots = torch.arange(start, start + count, device=self.model.device)[None]
        window = self.pool.window(row, start, count)
        mask = causal_mask(slots, start + count)
        positions = slots + prefilled.position_offset
        return self.model.extend(words, positions, mask, window)[:, -1]


def causal_mask(slots: torch.Tensor, length: int) -> torch.Tensor:
    """Queries in slots [B, n] see the slots up to their own -> bool [B, 1, n, length]."""
    return torch.arange(length, device=slots.device) <= slots[:, None, :, None]

"""Real-time chunking: denoise a chunk so that it continues the one that is being executed.

Source: arXiv 2506.07339, sections 3 and 4: pseudo-inverse guidance of the flow towards the rows
that overlap, with a soft mask. Flow time here runs from 1 (noise) to 0 (actions), tau = 1 - t.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Guide:
    """What the chunk should meet. target: [H, A] normalised; mask: [H, A] in [0, 1].

    strongest: the largest guidance weight (beta); it only caps the first steps.
    """

    target: torch.Tensor
    mask: torch.Tensor
    strongest: float = 5.0

    def to(self, device: torch.device) -> Guide:
        """The same on a device."""
        return Guide(self.target.to(device), self.mask.to(device), self.strongest)


def overlap_mask(horizon: int, overlap: int, delay: int) -> torch.Tensor:
    """Weights of the rows [H]: 1 for the `delay` rows that will be executed before the chunk is
    there, falling to 0 at the end of the `overlap` rows that the last chunk still had.
    """
    weights = torch.zeros(horizon)
    weights[:delay] = 1.0
    for row in range(delay, overlap):
        share = (overlap - row) / (overlap - delay + 1)
        weights[row] = share * math.expm1(share) / math.expm1(1.0)
    return weights


def guided_velocity(
    velocity: Callable[[torch.Tensor], torch.Tensor],
    actions: torch.Tensor,
    time: float,
    guide: Guide,
) -> torch.Tensor:
    """Velocity at noisy actions [1, H, A], bent so that the actions it leads to meet the guide."""
    with torch.enable_grad():
        noisy = actions.detach().requires_grad_()
        free = velocity(noisy)
        clean = noisy - time * free  # where the flow leads from here
    error = (guide.target - clean.detach()) * guide.mask
    (pull,) = torch.autograd.grad(clean, noisy, error)
    return free.detach() - _weight(time, guide.strongest) * pull


def _weight(time: float, strongest: float) -> float:
    """min(beta, (1 - tau) / (tau * r^2)), r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2)."""
    tau = 1.0 - time
    if tau <= 0.0:
        return strongest
    return min(strongest, (tau**2 + time**2) / (tau * time)) if time > 0.0 else strongest

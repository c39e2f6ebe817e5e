"""How a model is run: one word that users choose, and what it means for layers and shapes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oxygen_ros.models.base import FastLayers, VLAModel
from oxygen_ros.types import OxygenError


@dataclass(frozen=True)
class Execution:
    """layers: see FastLayers. captured: fixed shapes, as CUDA graphs where there is CUDA."""

    name: str
    layers: str
    captured: bool = False

    def apply(self, model: VLAModel) -> None:
        """Choose the model's layers; a family that has only plain ones keeps them."""
        if isinstance(model, FastLayers):
            model.use_layers(self.layers)


EAGER = Execution('eager', 'plain')  # the reference
EXECUTIONS = {
    way.name: way
    for way in (
        EAGER,
        Execution('fused', 'fused'),
        Execution('compiled', 'compiled'),
        Execution('graphs', 'fused', captured=True),
    )
}
NAMES = ('auto', *EXECUTIONS)


def choose(name: str, device: torch.device) -> Execution:
    """The way of that name; 'auto' is 'graphs' on a GPU, 'fused' elsewhere. Raises OxygenError."""
    if name == 'auto':
        return EXECUTIONS['graphs' if device.type == 'cuda' else 'fused']
    if name not in EXECUTIONS:
        raise OxygenError(f'execution is {name!r}: allowed are {", ".join(NAMES)}')
    return EXECUTIONS[name]


def compilations() -> int:
    """Graphs that torch.compile has made in this process: must not grow once a policy is ready."""
    return torch._dynamo.utils.counters['stats']['unique_graphs']

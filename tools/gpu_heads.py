"""Real head sizes and widths in bfloat16: every way to run a model beside eager in float32.

What the golden checkpoint is too small for: heads of 256 and 72 numbers take other attention
kernels, masked and not. Two layers of each tower, random weights, two frames of different lengths.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from oxygen_ros.checkpoint import Pi05Arch, load_into, tensor_shapes
from oxygen_ros.checkpoint.random_pi05 import SIZES
from oxygen_ros.checkpoint.random_weights import RandomWeights
from oxygen_ros.engine.budget import make_budget
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.execution import EXECUTIONS, Execution, start
from oxygen_ros.engine.request import FrameState, Limits
from oxygen_ros.models.pi05 import Pi05
from oxygen_ros.models.pi05_sizes import Pi05Options
from oxygen_ros.processing.pi05 import Pi05Inputs

Outputs = dict[str, np.ndarray]
ARCH = Pi05Arch(
    **{**SIZES['full'], 'depth': 2, 'vision_layers': 2, 'vocab_size': 1024}, horizon=10
)
PROMPTS = (21, 37)  # tokens of the two frames
_STEPS = 3
# Root of the mean squared error over that of the values, against eager in float32.
EAGER_MOST = 0.05
OTHERS_MOST = 1.5  # times eager's own


def weights() -> dict[str, torch.Tensor]:
    """Random values by checkpoint name, bfloat16 on the CPU."""
    made = RandomWeights(0, torch.bfloat16, spoken=range(4, ARCH.vocab_size), eos_id=1)
    return {name: made.tensor(name, shape) for name, shape in tensor_shapes(ARCH).items()}


def reference(device: str, values: dict[str, torch.Tensor]) -> Outputs:
    """Eager in float32."""
    return _outputs(_model(device, torch.float32, values), EXECUTIONS['eager'])


def check_way(
    device: str, name: str, values: dict[str, torch.Tensor], wanted: Outputs
) -> dict[str, Any]:
    """Relative errors of one way in bfloat16."""
    model = _model(device, torch.bfloat16, values)
    found, way, why = start(lambda way: _outputs(model, way), EXECUTIONS[name])
    errors = {key: _error(found[key], wanted[key]) for key in wanted}
    return {'asked': name, 'ran_as': way.name, 'fallback': why, 'errors': errors}


def good(found: dict[str, Any], eager: dict[str, Any]) -> bool:
    """Whether one way is about as near to float32 as eager is."""
    bounds = eager.get('errors', {})
    return bool(bounds) and all(
        error <= OTHERS_MOST * bounds[key] and bounds[key] <= EAGER_MOST
        for key, error in found['errors'].items()
    )


def _model(device: str, dtype: torch.dtype, values: dict[str, torch.Tensor]) -> Pi05:
    options = Pi05Options(max_cameras=1, max_prompt_tokens=max(PROMPTS))
    model = Pi05(ARCH, options, torch.device(device), dtype)
    load_into(model.checkpoint_parameters(), iter(values.items()))
    return model


@torch.no_grad()
def _outputs(model: Pi05, way: Execution) -> Outputs:
    """Last hidden states, actions, and logits of a decode step of both rows."""
    budget, limits = make_budget('unlimited'), Limits(len(PROMPTS), 4, 0, 4)
    clock = time.monotonic_ns
    engine = Engine(model, 'continuous', budget, limits, _STEPS, 2**40, clock, way)
    hidden, actions, slots = [], [], []
    for row, prompt in enumerate(PROMPTS):
        frame = _frame(row, prompt)
        prefilled = engine.runner.prefill(frame, row)
        hidden.append(prefilled.last_hidden.float().cpu())
        actions.append(engine.runner.act(frame, prefilled, row).cpu().clone())
        slots.append(prefilled.length)
    rows = list(range(len(PROMPTS)))
    words = torch.tensor([slots, [0, 0], [5, 9]])[..., None]
    logits, _, places = engine.runner.logits(rows, words, max(slots) + 1)
    found = {'hidden': hidden, 'actions': actions, 'logits': [logits[p].cpu() for p in places]}
    return {key: torch.stack(values).numpy() for key, values in found.items()}


def _frame(number: int, prompt: int) -> FrameState:
    random = torch.Generator().manual_seed(number)
    side = ARCH.image_size
    pixels = torch.rand(1, 3, side, side, generator=random) * 2 - 1
    words = torch.randint(4, ARCH.vocab_size, (prompt,), generator=random)
    noise = torch.randn(ARCH.horizon, ARCH.action_dim_padded, generator=random)
    return FrameState(number, 0, Pi05Inputs(pixels, words, False), noise)


def _error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)))

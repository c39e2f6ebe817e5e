"""What is measured: a model of a size with random weights, and the work of one frame."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import torch

from oxygen_ros.checkpoint import Pi05Arch, load_into, tensor_shapes
from oxygen_ros.checkpoint.random_pi05 import SIZES
from oxygen_ros.checkpoint.random_weights import RandomWeights
from oxygen_ros.engine.budget import make_budget
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.execution import choose
from oxygen_ros.engine.request import Limits
from oxygen_ros.models.pi05 import Pi05
from oxygen_ros.models.pi05_sizes import Pi05Options
from oxygen_ros.policy import DTYPES
from oxygen_ros.processing.pi05 import Pi05Inputs
from oxygen_ros.types import OxygenError


@dataclass(frozen=True)
class Setting:
    """One point of a workload. tokens: T of the one language request per frame. budget: k."""

    family: str = 'pi05'
    size: str = 'tiny'
    device: str = 'cpu'
    dtype: str = 'bfloat16'
    execution: str = 'auto'
    cameras: int = 3
    prompt_tokens: int = 200
    horizon: int = 10
    denoise_steps: int = 10
    tokens: int = 30
    budget: int | str = 5

    @property
    def rows(self) -> int:
        """Language rows at steady state: requests of T tokens, k steps per frame each."""
        return -(-self.tokens // max(self.steps_per_frame, 1)) if self.tokens else 0

    @property
    def steps_per_frame(self) -> int:
        """k; all T where it is unlimited or more than T, and 1, the least, where it is 'auto'."""
        if isinstance(self.budget, int):
            return min(self.budget, self.tokens)
        return 1 if self.budget == 'auto' else self.tokens

    def limits(self, longest: int = 1) -> Limits:
        """What an engine allocates. longest: of an answer, in times of the setting's tokens."""
        return Limits(self.rows + 1, 64, 0, longest * max(self.tokens, 1))


def network(setting: Setting) -> Pi05:
    """The network without weights; on the device 'meta' it takes no memory."""
    if setting.size not in SIZES:
        raise OxygenError(f'size is {setting.size!r}, allowed: {", ".join(SIZES)}')
    arch = Pi05Arch(**SIZES[setting.size], horizon=setting.horizon)
    options = Pi05Options(max_cameras=setting.cameras, max_prompt_tokens=setting.prompt_tokens)
    model = Pi05(arch, options, torch.device(setting.device), DTYPES[setting.dtype])
    model.tie_head()
    return model


def build_model(setting: Setting) -> Pi05:
    """The network with random weights that never ends an answer by itself."""
    model = network(setting)
    arch, dtype = model.arch, DTYPES[setting.dtype]
    weights = RandomWeights(0, dtype, spoken=range(4, arch.vocab_size), eos_id=1)
    shapes = tensor_shapes(arch)
    load_into(
        model.checkpoint_parameters(),
        ((name, weights.tensor(name, shape)) for name, shape in shapes.items()),
    )
    model.spec = dataclasses.replace(model.spec, eos_ids=frozenset())
    return model


def build_engine(
    model: Pi05, setting: Setting, mode: str, budget: str | int, longest: int = 1
) -> Engine:
    """An engine of one mode on a model that several engines share; longest as in limits()."""
    return Engine(
        model,
        mode,
        make_budget(budget),
        setting.limits(longest),
        setting.denoise_steps,
        2**40,
        time.monotonic_ns,
        choose(setting.execution, model.device),
    )


def make_inputs(model: Pi05, setting: Setting, number: int) -> Pi05Inputs:
    """One frame's inputs, different for each number."""
    arch = model.arch
    random = torch.Generator().manual_seed(number)
    side = arch.image_size
    pixels = torch.rand(setting.cameras, 3, side, side, generator=random) * 2 - 1
    words = torch.randint(4, arch.vocab_size, (setting.prompt_tokens,), generator=random)
    return Pi05Inputs(pixels, words, False)

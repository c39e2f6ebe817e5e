"""What the Qwen-VL families have in common here: random weights, a prefix of real length."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from oxygen_ros.bench.setting import Setting
from oxygen_ros.checkpoint import load_into
from oxygen_ros.types import OxygenError

MERGED = 4  # patches of one image token
_OTHERS = 2  # vision tokens around an image
_VALUES = 3 * 2 * 16 * 16  # of one patch


class Weights(Protocol):
    """Random values by name."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of a stored name."""
        ...


class Prefix(NamedTuple):
    """Token ids [S], pixels [patches, values] in [-1, 1], and patches by image [cameras, 3]."""

    token_ids: torch.Tensor
    pixel_values: torch.Tensor
    grid: torch.Tensor


def fill(model: torch.nn.Module, weights: Weights) -> None:
    """Random values for every parameter."""
    parameters = dict(model.named_parameters())
    load_into(
        parameters,
        ((name, weights.tensor(name, tuple(p.shape))) for name, p in parameters.items()),
    )


def check_prompt(setting: Setting) -> None:
    """The prompt has room for the tokens around each image. Raises OxygenError."""
    least = _OTHERS * setting.cameras + 1
    if setting.prompt_tokens < least:
        raise OxygenError(
            f'--prompt-tokens is {setting.prompt_tokens}: with {setting.cameras} cameras this '
            f'family needs at least {least}'
        )


def prefix(
    config: Any, patches: tuple[int, int], setting: Setting, random: torch.Generator
) -> Prefix:
    """Images of so many patches in height and width, then words. config: of the backbone."""
    check_prompt(setting)
    rows, columns = patches
    tokens, cameras = rows * columns // MERGED, setting.cameras
    start, end = config.vision_start_token_id, config.vision_end_token_id
    image = torch.tensor([start, *[config.image_token_id] * tokens, end])
    words = torch.randint(256, (setting.prompt_tokens - _OTHERS * cameras,), generator=random)
    return Prefix(
        torch.cat([image.repeat(cameras), words]),
        torch.rand(cameras * rows * columns, _VALUES, generator=random) * 2 - 1,
        torch.tensor([[1, rows, columns]] * cameras),
    )

"""Xiaomi-Robotics-0 as the benchmark runs it: random weights, and inputs of real lengths."""

from __future__ import annotations

import torch

from oxygen_ros.bench.setting import Setting
from oxygen_ros.checkpoint import load_into
from oxygen_ros.checkpoint.random_xiaomi_robotics_0 import XiaomiWeights, random_layout
from oxygen_ros.models.xiaomi_robotics_0 import XiaomiRobotics0
from oxygen_ros.policy import DTYPES
from oxygen_ros.processing.xiaomi_robotics_0 import XiaomiInputs

# Patches of a camera in height and width: 640 x 480, and 96 x 64 for the tiny one.
_GRIDS = {'tiny': (4, 6), 'small': (30, 40), 'full': (30, 40)}
_MERGED = 4  # patches of one image token
_SUFFIX = 7  # tokens of the action branch's own words, with the makers' tokenizer
_OTHERS = 2  # vision tokens around an image


def build_model(setting: Setting) -> XiaomiRobotics0:
    """The network with random weights that never ends an answer by itself."""
    rows, columns = _GRIDS[setting.size]
    layout = random_layout(
        setting.size,
        setting.cameras,
        rows * columns // _MERGED,
        setting.prompt_tokens,
        setting.horizon,
    )
    device, dtype = torch.device(setting.device), DTYPES[setting.dtype]
    model = XiaomiRobotics0(layout, frozenset(), device, dtype)
    model.set_action_mask(torch.ones(setting.horizon, layout.action_width))
    words = model.spec.vocab_size
    weights = XiaomiWeights(0, dtype, spoken=range(words), eos_id=0)
    parameters = dict(model.named_parameters())
    load_into(
        parameters,
        ((name, weights.tensor(name, tuple(p.shape))) for name, p in parameters.items()),
    )
    return model


def make_inputs(model: XiaomiRobotics0, setting: Setting, number: int) -> XiaomiInputs:
    """One frame's inputs, different for each number."""
    random = torch.Generator().manual_seed(number)
    config, (rows, columns) = model.vlm.config, _GRIDS[setting.size]
    tokens, cameras = rows * columns // _MERGED, setting.cameras
    start, end = config.vision_start_token_id, config.vision_end_token_id
    image = torch.tensor([start, *[config.image_token_id] * tokens, end])
    words = torch.randint(256, (setting.prompt_tokens - _OTHERS * cameras,), generator=random)
    values = 3 * 2 * 16 * 16
    return XiaomiInputs(
        token_ids=torch.cat([image.repeat(cameras), words]),
        suffix_ids=torch.randint(256, (_SUFFIX,), generator=random),
        pixel_values=torch.rand(cameras * rows * columns, values, generator=random) * 2 - 1,
        grid=torch.tensor([[1, rows, columns]] * cameras),
        state=torch.randn(1, model.layout.state_width, generator=random),
        truncated=False,
    )

"""Xiaomi-Robotics-0 as the benchmark runs it: random weights, and inputs of real lengths."""

from __future__ import annotations

import torch

from oxygen_ros.bench.qwen import MERGED, check_prompt, fill, prefix
from oxygen_ros.bench.setting import Setting
from oxygen_ros.checkpoint.random_xiaomi_robotics_0 import XiaomiWeights, random_layout
from oxygen_ros.models.xiaomi_robotics_0 import XiaomiRobotics0
from oxygen_ros.policy import DTYPES
from oxygen_ros.processing.xiaomi_robotics_0 import XiaomiInputs

# Patches of a camera in height and width: 640 x 480, and 96 x 64 for the tiny one.
_GRIDS = {'tiny': (4, 6), 'small': (30, 40), 'full': (30, 40)}
_SUFFIX = 7  # tokens of the action branch's own words, with the makers' tokenizer


def network(setting: Setting) -> XiaomiRobotics0:
    """The network without weights; on the device 'meta' it takes no memory."""
    check_prompt(setting)
    rows, columns = _GRIDS[setting.size]
    layout = random_layout(
        setting.size,
        setting.cameras,
        rows * columns // MERGED,
        setting.prompt_tokens,
        setting.horizon,
    )
    device, dtype = torch.device(setting.device), DTYPES[setting.dtype]
    return XiaomiRobotics0(layout, frozenset(), device, dtype)


def build_model(setting: Setting) -> XiaomiRobotics0:
    """The network with random weights that never ends an answer by itself."""
    model = network(setting)
    model.set_action_mask(torch.ones(setting.horizon, model.layout.action_width))
    words = range(model.spec.vocab_size)
    fill(model, XiaomiWeights(0, DTYPES[setting.dtype], spoken=words, eos_id=0))
    return model


def make_inputs(model: XiaomiRobotics0, setting: Setting, number: int) -> XiaomiInputs:
    """One frame's inputs, different for each number."""
    random = torch.Generator().manual_seed(number)
    seen = prefix(model.vlm.config, _GRIDS[setting.size], setting, random)
    return XiaomiInputs(
        token_ids=seen.token_ids,
        suffix_ids=torch.randint(256, (_SUFFIX,), generator=random),
        pixel_values=seen.pixel_values,
        grid=seen.grid,
        state=torch.randn(1, model.layout.state_width, generator=random),
        truncated=False,
    )

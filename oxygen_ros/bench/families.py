"""The families that are measured, by name: each with random weights and inputs of real lengths."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch

from oxygen_ros.bench import setting as pi05
from oxygen_ros.bench import starvla, xiaomi_robotics_0
from oxygen_ros.bench.setting import Setting
from oxygen_ros.checkpoint.starvla_head import HEADS
from oxygen_ros.models.pi05 import DENOISE_STEPS as PI05_STEPS
from oxygen_ros.models.xiaomi_robotics_0 import DENOISE_STEPS as XIAOMI_STEPS
from oxygen_ros.types import OxygenError

# name -> module with network(setting), build_model(setting), make_inputs(model, setting, number)
FAMILIES: dict[str, Any] = {
    'pi05': pi05,
    'xiaomi_robotics_0': xiaomi_robotics_0,
    'starvla': starvla,
}

STEPS = {  # of the flow, as their makers take
    'pi05': PI05_STEPS,
    'xiaomi_robotics_0': XIAOMI_STEPS,
    'starvla': HEADS['QwenPI_v3'].steps,
}


def build_model(setting: Setting) -> Any:
    """The network of the setting's family. Raises OxygenError."""
    if setting.family not in FAMILIES:
        raise OxygenError(f'family is {setting.family!r}, allowed: {", ".join(FAMILIES)}')
    module = FAMILIES[setting.family]
    _check_fits(module.network(replace(setting, device='meta')), torch.device(setting.device))
    return module.build_model(setting)


def make_inputs(model: Any, setting: Setting, number: int) -> Any:
    """One frame's inputs, different for each number."""
    return FAMILIES[setting.family].make_inputs(model, setting, number)


def _check_fits(model: torch.nn.Module, device: torch.device) -> None:
    """Refuse a model that is larger than the device's memory, before it is built."""
    needed = sum(value.numel() * value.element_size() for value in model.parameters())
    if device.type == 'cuda':
        owner, there = str(device), torch.cuda.get_device_properties(device).total_memory
    else:
        owner, there = 'the machine', os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    if needed > 0.8 * there:
        raise OxygenError(
            f'the model needs {needed / 2**30:.1f} GiB, {owner} has {there / 2**30:.1f} GiB: '
            'choose a smaller size or dtype'
        )

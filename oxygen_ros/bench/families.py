"""The families that are measured, by name: each with random weights and inputs of real lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from oxygen_ros.bench import setting as pi05
from oxygen_ros.bench import starvla, xiaomi_robotics_0
from oxygen_ros.bench.setting import Setting
from oxygen_ros.checkpoint.starvla_head import HEADS
from oxygen_ros.devices import available_bytes
from oxygen_ros.engine.kv_size import kv_size
from oxygen_ros.engine.request import Limits
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

FIXED_HORIZON = {'xiaomi_robotics_0'}  # a network that has one horizon only
_USABLE = 0.9  # of the free memory; the rest is for what a forward needs


def build_model(setting: Setting, pools: Sequence[Limits]) -> Any:
    """The network of the setting's family; pools: of the engines that live at once on it.

    Raises OxygenError, without building it if there is not the memory for both.
    """
    module = FAMILIES[setting.family]
    _check_fits(module.network(replace(setting, device='meta')), pools, setting.device)
    return module.build_model(setting)


def make_inputs(model: Any, setting: Setting, number: int) -> Any:
    """One frame's inputs, different for each number."""
    return FAMILIES[setting.family].make_inputs(model, setting, number)


def _check_fits(model: Any, pools: Sequence[Limits], device: str) -> None:
    weights = sum(value.numel() * value.element_size() for value in model.parameters())
    item = model.dtype.itemsize
    kv = sum(kv_size(model.spec, limits, item).bytes for limits in pools)
    free = available_bytes(torch.device(device))
    if weights + kv > _USABLE * free:
        raise OxygenError(
            f'weights of {weights / 2**30:.1f} GiB and {len(pools)} KV pools of '
            f'{kv / 2**30:.1f} GiB do not fit into the {free / 2**30:.1f} GiB that are free on '
            f'{device}: choose a smaller size, dtype, fewer tokens, cameras or modes'
        )

"""The families that are measured, by name: each with random weights and inputs of real lengths."""

from __future__ import annotations

from typing import Any

from oxygen_ros.bench import setting as pi05
from oxygen_ros.bench import starvla, xiaomi_robotics_0
from oxygen_ros.bench.setting import Setting
from oxygen_ros.types import OxygenError

# name -> module with build_model(setting) and make_inputs(model, setting, number)
FAMILIES: dict[str, Any] = {
    'pi05': pi05,
    'xiaomi_robotics_0': xiaomi_robotics_0,
    'starvla': starvla,
}

STEPS = {'pi05': 10, 'xiaomi_robotics_0': 5, 'starvla': 4}  # of the flow, as their makers take


def build_model(setting: Setting) -> Any:
    """The network of the setting's family. Raises OxygenError."""
    if setting.family not in FAMILIES:
        raise OxygenError(f'family is {setting.family!r}, allowed: {", ".join(FAMILIES)}')
    return FAMILIES[setting.family].build_model(setting)


def make_inputs(model: Any, setting: Setting, number: int) -> Any:
    """One frame's inputs, different for each number."""
    return FAMILIES[setting.family].make_inputs(model, setting, number)

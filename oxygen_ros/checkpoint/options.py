"""oxygen.json: what a checkpoint folder may state beyond its maker's own files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from oxygen_ros.checkpoint.arch import ARCH_KEYS, REAL_NUMBERS
from oxygen_ros.checkpoint.files import read_json
from oxygen_ros.checkpoint.info import EPS_RULES, IMAGE_RESIZES, PROMPT_LAYOUTS, TIME_RULES
from oxygen_ros.types import OxygenError

FILE = 'oxygen.json'
_CHOICES = {
    'prompt_layout': PROMPT_LAYOUTS,
    'time_rule': TIME_RULES,
    'image_resize': IMAGE_RESIZES,
    'eps_rule': tuple(EPS_RULES),
}
_COUNTS = ('state_dim', 'action_dim', 'prompt_state_dim', 'tokenizer_max_length')
_PATHS = ('tokenizer', 'statistics')


@dataclass(frozen=True)
class Options:
    """Contents of oxygen.json; None or empty means: as the checkpoint's maker does it.

    architecture: fields of Pi05Arch that tensor shapes cannot tell (head counts, horizon, ...).
    tokenizer, statistics: paths, relative to the checkpoint folder. statistics is a JSON file
    with the statistics of state and actions, as openpi's norm_stats.json or LeRobot's stats.json.
    state_in_prompt: False where the checkpoint was trained with the task alone in its prompt.
    prompt_state_dim, prompt_state_pad: see Pi05Layout.
    state_dim, action_dim: of the robot, where the statistics are wider than the robot.
    constant_dimensions: 'state', 'action' -> those whose statistics may lack a range.
    relative_actions: true for each action that counts from the frame's state (openpi's
    DeltaActions, which its checkpoints do not state).
    """

    architecture: Mapping[str, float] = field(default_factory=dict)
    prompt_layout: str | None = None
    time_rule: str | None = None
    image_resize: str | None = None
    eps_rule: str | None = None
    state_in_prompt: bool | None = None
    tokenizer: Path | None = None
    statistics: Path | None = None
    state_dim: int | None = None
    action_dim: int | None = None
    tokenizer_max_length: int | None = None
    relative_actions: list[bool] | None = None
    prompt_state_dim: int | None = None
    prompt_state_pad: float | None = None
    constant_dimensions: Mapping[str, list[int]] = field(default_factory=dict)


def read_options(folder: Path, others: tuple[str, ...] = ()) -> Options:
    """Read oxygen.json of a checkpoint folder, or the defaults where there is none.

    others: keys that another part reads. Raises OxygenError on an unknown key or a value that is
    not allowed.
    """
    path = folder / FILE
    if not path.exists():
        return Options()
    values = read_json(path)
    known = tuple(each.name for each in fields(Options))
    check_keys(values, (*known, *others), f'{path}: unknown key')
    values = {key: value for key, value in values.items() if key in known}
    _check_architecture(values.get('architecture', {}), path)
    for key in _COUNTS:
        count(values.get(key, 1), f'{path}: {key}')
    _check_constant(values.get('constant_dimensions', {}), path)
    pad = values.get('prompt_state_pad', 0.0)
    if isinstance(pad, bool) or not isinstance(pad, int | float) or not math.isfinite(pad):
        raise OxygenError(f'{path}: prompt_state_pad is {pad!r}, a number is expected')
    for key, allowed in _CHOICES.items():
        if key in values and values[key] not in allowed:
            raise OxygenError(f'{path}: {key} is {values[key]!r}, allowed: {", ".join(allowed)}')
    for key in _PATHS:
        if key in values:
            values[key] = existing(folder / str(values[key]), f'{path}: {key}')
    _check_state_in_prompt(values, path)
    relative = values.get('relative_actions', [])
    if not isinstance(relative, list) or not all(isinstance(one, bool) for one in relative):
        raise OxygenError(f'{path}: relative_actions must be a list of true and false')
    return Options(**values)


def _check_architecture(architecture: Any, path: Path) -> None:
    if not isinstance(architecture, dict):
        raise OxygenError(f'{path}: architecture must be an object of numbers')
    check_keys(architecture, ARCH_KEYS, f'{path}: unknown key under architecture')
    for key, value in architecture.items():
        allowed_type = int | float if key in REAL_NUMBERS else int
        check_number(value, isinstance(value, allowed_type), f'{path}: architecture.{key}')


def _check_state_in_prompt(values: Mapping[str, Any], path: Path) -> None:
    given = values.get('state_in_prompt', True)
    if not isinstance(given, bool):
        raise OxygenError(f'{path}: state_in_prompt is {given!r}, allowed: true, false')
    keys = ('state_in_prompt', 'prompt_state_dim', 'prompt_state_pad')
    said = [key for key in keys if key in values]
    if said and values.get('prompt_layout') == 'causal':
        raise OxygenError(
            f'{path}: {said[0]} is of the bidirectional prompt_layout only, the causal one never '
            'holds the state; remove it'
        )
    if said[1:] and not given:
        raise OxygenError(f'{path}: {said[1]} is of a prompt that holds the state; remove it')


def _check_constant(given: Any, path: Path) -> None:
    lists = list(given.values()) if isinstance(given, dict) else [None]
    if not all(isinstance(one, list) and all(type(i) is int for i in one) for one in lists):
        raise OxygenError(
            f'{path}: constant_dimensions is {given!r}, an object like {{"action": [3]}} is '
            'expected'
        )
    check_keys(given, ('state', 'action'), f'{path}: unknown key under constant_dimensions')


def check_keys(values: Mapping[str, Any], known: tuple[str, ...], problem: str) -> None:
    """Raise OxygenError that begins with the problem and names the unknown and the known."""
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise OxygenError(f'{problem} {", ".join(unknown)}; known: {", ".join(sorted(known))}')


def check_number(value: Any, right_type: bool, what: str) -> None:
    """Raise OxygenError if a value is no positive number."""
    if not right_type or isinstance(value, bool) or value <= 0:
        raise OxygenError(f'{what} is {value!r}, a positive number is expected')


def count(value: Any, what: str) -> int:
    """The value if it is a whole number from 1. Raises OxygenError otherwise."""
    if type(value) is not int or value < 1:
        raise OxygenError(f'{what} is {value!r}, a whole number of at least 1 is expected')
    return value


def existing(path: Path, what: str) -> Path:
    """The path, or OxygenError if nothing is there."""
    if not path.exists():
        raise OxygenError(f'{what} points to {path}, which does not exist')
    return path

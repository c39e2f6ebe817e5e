"""oxygen.json of a StarVLA run: what neither config.yaml nor the weights tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from oxygen_ros.checkpoint.files import read_json
from oxygen_ros.checkpoint.options import FILE, check_keys, existing
from oxygen_ros.types import OxygenError

# openpi_...: as openpi does it, its eps added to every width
_NORMALIZATIONS = ('quantiles', 'min_max', 'mean_std', 'openpi_quantiles', 'openpi_mean_std')
_TEXTS = {
    'state_normalization': (*_NORMALIZATIONS, 'identity'),
    'action_normalization': _NORMALIZATIONS,
}
_COUNTS = (
    'state_dim',
    'step',
    'tokenizer_max_length',
    'max_image_tokens',
    'max_action_tokens',
    'attention_heads',
)
_PATHS = ('base_vlm', 'statistics', 'fast_tokenizer')


@dataclass(frozen=True)
class RunOptions:
    """None or empty means: as the run's own files have it.

    cameras: slot names in the order of the images in the prompt; a run does not name them.
    base_vlm: folder of the backbone's config, tokenizer and processor. step: of the weights.
    include_state: whether the head was trained with the robot's state. gripper: the action that
    becomes 0 or 1, -1 for none. state_dim: of the robot. constant_dimensions: 'state' -> those
    whose statistics may lack a range. tokenizer_max_length: tokens of the longest prompt beside
    images; max_image_tokens: of one image, where the run does not fix its size. statistics,
    fast_tokenizer: paths; max_action_tokens: of a chunk that is decoded.
    attention_heads: of the action head, where it was not built by its type's defaults.
    image_resize: of a Qwen image processor; a PI0 or PI05 has other rules under this key.
    """

    cameras: tuple[str, ...] = ()
    base_vlm: Path | None = None
    step: int = 0
    include_state: bool | None = None
    state_normalization: str = ''
    action_normalization: str = ''
    gripper: int | None = None
    state_dim: int | None = None
    constant_dimensions: Mapping[str, list[int]] = field(default_factory=dict)
    tokenizer_max_length: int = 200
    max_image_tokens: int = 320
    statistics: Path | None = None
    fast_tokenizer: Path | None = None
    max_action_tokens: int = 256
    attention_heads: int = 0
    image_resize: str = ''


RUN_KEYS = tuple(each.name for each in fields(RunOptions))
# Those that a PI0 or PI05 reads, beside what any pi0.5 may state.
PI_KEYS = (
    'step',
    'include_state',
    'state_normalization',
    'action_normalization',
    'gripper',
    'constant_dimensions',
)


def read_run_options(folder: Path, others: tuple[str, ...] | None = None) -> RunOptions:
    """Read the keys of a run; others: further keys that may be there, None for any.

    Raises OxygenError on an unknown key or a value that is not allowed.
    """
    path = folder / FILE
    if not path.exists():
        return RunOptions()
    values = read_json(path)
    if others is not None:
        check_keys(values, (*RUN_KEYS, *others), f'{path}: unknown key')
    values = {key: value for key, value in values.items() if key in RUN_KEYS}
    _check(values, path)
    for key in _PATHS:
        if key in values:
            values[key] = existing(folder / str(values[key]), f'{path}: {key}')
    if 'cameras' in values:
        values['cameras'] = tuple(values['cameras'])
    return RunOptions(**values)


def _check(values: Mapping[str, Any], path: Path) -> None:
    for key, allowed in _TEXTS.items():
        if key in values and values[key] not in allowed:
            raise OxygenError(f'{path}: {key} is {values[key]!r}, allowed: {", ".join(allowed)}')
    for key in _COUNTS:
        _require(values, key, path, 'a positive number', lambda v: type(v) is int and v > 0)
    _require(values, 'gripper', path, 'an index, or -1', lambda v: type(v) is int and v >= -1)
    _require(values, 'include_state', path, 'true or false', lambda v: isinstance(v, bool))
    _require(values, 'cameras', path, 'a list of names, each once', _are_names)
    said = 'an object like {"state": [3]}'
    _require(values, 'constant_dimensions', path, said, _are_dimensions)


def _are_names(value: Any) -> bool:
    named = isinstance(value, list) and bool(value) and all(type(name) is str for name in value)
    return named and len(set(value)) == len(value)


def _are_dimensions(value: Any) -> bool:
    lists = (
        value.values() if isinstance(value, dict) and value.keys() <= {'state', 'action'} else [0]
    )
    return all(isinstance(one, list) and all(type(i) is int for i in one) for one in lists)


def _require(values: Mapping[str, Any], key: str, path: Path, what: str, test: Any) -> None:
    if key in values and not test(values[key]):
        raise OxygenError(f'{path}: {key} is {values[key]!r}, {what} is expected')

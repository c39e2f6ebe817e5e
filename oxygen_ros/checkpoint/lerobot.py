"""LeRobot's pi0.5 folder: config.json, policy_{pre,post}processor.json and their state files.

Source: LeRobot 0.6.1, configuration_pi05.py and processor_pi05.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.checkpoint.arch import variant_heads
from oxygen_ros.checkpoint.files import read_json
from oxygen_ros.checkpoint.info import EPS_RULES, Described
from oxygen_ros.checkpoint.options import Options
from oxygen_ros.checkpoint.quantiles import Quantiles, from_json, from_safetensors
from oxygen_ros.types import OxygenError

_PRE = 'policy_preprocessor.json'
_POST = 'policy_postprocessor.json'
# Steps the node reproduces; any other would change the numbers unseen.
_KNOWN_STEPS = frozenset(
    {
        'rename_observations_processor',
        'to_batch_processor',
        'relative_actions_processor',
        'normalizer_processor',
        'pi05_prepare_state_tokenizer_processor_step',
        'tokenizer_processor',
        'unnormalizer_processor',
        'absolute_actions_processor',
        'device_processor',
    }
)
_RELATIVE_STEPS = ('relative_actions_processor', 'absolute_actions_processor')
_NO_RELATIVE = 'actions relative to the state are not supported'
_NORM_MAP = {'VISUAL': 'IDENTITY', 'STATE': 'QUANTILES', 'ACTION': 'QUANTILES'}
_CAMERA_PREFIX = re.compile(r'^observation\.(images\.)?')
_EMPTY_CAMERA = re.compile(r'empty_camera_\d+')

Steps = dict[str, dict[str, Any]]


def describe(folder: Path, config: dict[str, Any], options: Options) -> Described:
    """Read what a LeRobot checkpoint states of itself. Raises OxygenError."""
    path = folder / 'config.json'
    if config.get('type') != 'pi05':
        raise OxygenError(f'{path}: type is {config.get("type")!r}, supported: pi05')
    if config.get('use_relative_actions'):
        raise OxygenError(f'{path}: use_relative_actions is true, {_NO_RELATIVE}')
    pre, post = _steps(folder / _PRE), _steps(folder / _POST)
    tokenizer = pre.get('tokenizer_processor', {}).get('config', {})
    state, action = _statistics(folder, pre, post, options)
    return Described(
        format='lerobot',
        cameras=_cameras(config, path),
        state=state,
        action=action,
        state_dim=_width(config, 'input_features', 'observation.state', path),
        action_dim=_width(config, 'output_features', 'action', path),
        sizes=_sizes(config, path),
        image_resolution=tuple(config.get('image_resolution', ())) or None,
        tokenizer_dirs=_tokenizer_dirs(folder, tokenizer.get('tokenizer_name')),
        tokenizer_max_length=int(
            tokenizer.get('max_length', config.get('tokenizer_max_length', 200))
        ),
        time_rule='float32_of_step',
        image_resize='float_bilinear',
        eps_rule='replace_zero_width',
        eps=float(
            pre.get('normalizer_processor', {})
            .get('config', {})
            .get('eps', EPS_RULES['replace_zero_width'])
        ),
    )


def _steps(path: Path) -> Steps:
    """Registry name -> step of one processor file; {} where there is no such file."""
    if not path.is_file():
        return {}
    steps: Steps = {}
    for step in read_json(path).get('steps', []):
        name = step.get('registry_name') or step.get('class', 'a step without a name')
        if name not in _KNOWN_STEPS:
            raise OxygenError(
                f'{path}: step {name} is not known; known: {", ".join(sorted(_KNOWN_STEPS))}'
            )
        config = step.get('config', {})
        if name in _RELATIVE_STEPS and config.get('enabled'):
            raise OxygenError(f'{path}: {name} is enabled, {_NO_RELATIVE}')
        for kind, mode in _NORM_MAP.items():
            given = config.get('norm_map', _NORM_MAP).get(kind, 'IDENTITY')
            if given != mode:
                raise OxygenError(
                    f'{path}: {name} normalises {kind} by {given}, supported: {mode}'
                )
        steps[name] = step
    return steps


def _statistics(
    folder: Path, pre: Steps, post: Steps, options: Options
) -> tuple[Quantiles, Quantiles]:
    if options.statistics is not None:
        return from_json(options.statistics, np.float32)
    state_path = _state_file(folder / _PRE, pre.get('normalizer_processor'))
    action_path = _state_file(folder / _POST, post.get('unnormalizer_processor'))
    return (
        from_safetensors(state_path, 'observation.state'),
        from_safetensors(action_path, 'action'),
    )


def _state_file(path: Path, step: dict[str, Any] | None) -> Path:
    if step is None or not step.get('state_file'):
        raise OxygenError(
            f'{path}: names no normalisation statistics; copy the complete checkpoint, or name a '
            'file under "statistics" in oxygen.json'
        )
    return path.parent / str(step['state_file'])


def _cameras(config: dict[str, Any], path: Path) -> tuple[str, ...]:
    features = config.get('input_features') or {}
    names = (
        _CAMERA_PREFIX.sub('', name)
        for name, feature in features.items()
        if feature.get('type') == 'VISUAL'
    )
    # LeRobot writes slots it never fills as empty cameras; they are masked, so they do not count.
    cameras = tuple(name for name in names if not _EMPTY_CAMERA.fullmatch(name))
    if not cameras:
        raise OxygenError(f'{path}: input_features has no feature of type VISUAL')
    return cameras


def _width(config: dict[str, Any], group: str, name: str, path: Path) -> int:
    shape = (config.get(group) or {}).get(name, {}).get('shape')
    if not isinstance(shape, list) or len(shape) != 1:
        raise OxygenError(f'{path}: {group}.{name} has no shape [width], but {shape!r}')
    return int(shape[0])


def _sizes(config: dict[str, Any], path: Path) -> dict[str, float]:
    if 'chunk_size' not in config:
        raise OxygenError(f'{path}: chunk_size (the action horizon) is missing')
    sizes: dict[str, float] = {'horizon': int(config['chunk_size'])}
    sizes.update(variant_heads(config))
    sizes.update({key: config[key] for key in ('min_period', 'max_period') if key in config})
    return sizes


def _tokenizer_dirs(folder: Path, name: str | None) -> tuple[Path, ...]:
    """tokenizer_name counts only where it is a folder on this machine; nothing is downloaded."""
    named = (folder / name,) if name else ()
    return (folder / 'tokenizer', folder, *named)

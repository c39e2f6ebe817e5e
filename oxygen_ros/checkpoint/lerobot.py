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
from oxygen_ros.checkpoint.options import Options, check_number, count
from oxygen_ros.checkpoint.stats import MODES, Statistics, from_json, from_safetensors, identity
from oxygen_ros.types import OxygenError

_PRE = 'policy_preprocessor.json'
_POST = 'policy_postprocessor.json'
_RELATIVE, _ABSOLUTE = 'relative_actions_processor', 'absolute_actions_processor'
_PROMPT = 'pi05_prepare_state_tokenizer_processor_step'
# Steps the node reproduces; any other, or another order, would change the numbers unseen.
_ORDER = (
    _RELATIVE,
    'normalizer_processor',
    _PROMPT,
    'tokenizer_processor',
    'unnormalizer_processor',
    _ABSOLUTE,
)
_KNOWN_STEPS = (
    *_ORDER,
    'rename_observations_processor',
    'to_batch_processor',
    'device_processor',
)
# Settings of newer versions, and the only value that is reproduced.
_PROMPT_SETTINGS = {'include_state_in_prompt': True, 'use_episode_metadata': False}
_NORM_MAP = {'STATE': 'QUANTILES', 'ACTION': 'QUANTILES'}  # pi0.5's, where nothing is written
_MEMORY_KEYS = ('use_visual_memory', 'use_proprioceptive_memory')
# Feature -> its kind in a norm_map, its group in config.json, its name in norm_stats.json.
_FEATURES = {
    'observation.state': ('STATE', 'input_features', 'state'),
    'action': ('ACTION', 'output_features', 'actions'),
}
_CAMERA_PREFIX = re.compile(r'^observation\.(images\.)?')
_EMPTY_CAMERA = re.compile(r'empty_camera_\d+')

Steps = dict[str, dict[str, Any]]


def describe(folder: Path, config: dict[str, Any], options: Options) -> Described:
    """Read what a LeRobot checkpoint states of itself. Raises OxygenError."""
    path = folder / 'config.json'
    if config.get('type') != 'pi05':
        raise OxygenError(f'{path}: type is {config.get("type")!r}, supported: pi05')
    if memory := [key for key in _MEMORY_KEYS if config.get(key)]:
        raise OxygenError(f'{path}: {memory[0]} is true, memory of past frames is not supported')
    if config.get('n_obs_steps', 1) != 1:
        raise OxygenError(
            f'{path}: n_obs_steps is {config["n_obs_steps"]!r}, supported: 1, the current frame'
        )
    pre = _steps(folder / _PRE)
    post = _steps(folder / _POST)
    action_dim = _width(config, 'output_features', 'action', path)
    tokenizer = pre.get('tokenizer_processor', {}).get('config', {})
    words = tokenizer.get('max_length', config.get('tokenizer_max_length', 200))
    state_dim = _width(config, 'input_features', 'observation.state', path)
    return Described(
        format='lerobot',
        cameras=_cameras(config, path),
        state_dim=state_dim,
        action_dim=action_dim,
        relative_actions=_relative(config, pre, post, action_dim, folder),
        sizes=_sizes(config, path),
        image_resolution=tuple(config.get('image_resolution', ())) or None,
        tokenizer_dirs=_tokenizer_dirs(folder, tokenizer.get('tokenizer_name')),
        tokenizer_max_length=count(words, f'{path}: tokenizer_max_length'),
        time_rule='float32_of_step',
        image_resize='float_bilinear',
        eps_rule='replace_zero_width',
        denoise_steps=count(config.get('num_inference_steps', 10), f'{path}: num_inference_steps'),
        old_prompt=_old_prompt(config, pre, options, state_dim),
    )


def _old_prompt(config: dict[str, Any], pre: Steps, options: Options, state_dim: int) -> str:
    """LeRobot 0.4 padded the state before it became words; 0.5.0, without its mark, did not."""
    own, most = options.state_dim or state_dim, int(config.get('max_state_dim', 32))
    wordless = options.state_in_prompt is False or options.prompt_layout == 'causal'
    if not pre or _RELATIVE in pre or options.prompt_state_dim or wordless or own >= most:
        return ''
    return (
        f'{_PRE} has no {_RELATIVE}, so LeRobot 0.4 or 0.5.0 wrote it: supposed is 0.5.0, whose '
        f"prompt holds the state's own {own} values; if 0.4 trained it, set prompt_state_dim to "
        f'{most} in oxygen.json, if not, to {own}'
    )


def _steps(path: Path) -> Steps:
    """Registry name -> step of one processor file; {} where there is no such file."""
    if not path.is_file():
        return {}
    steps: Steps = {}
    order: list[str] = []
    for step in read_json(path).get('steps', []):
        name = step.get('registry_name') or step.get('class', 'a step without a name')
        if name not in _KNOWN_STEPS:
            raise OxygenError(
                f'{path}: step {name} is not known; known: {", ".join(sorted(_KNOWN_STEPS))}'
            )
        config = step.get('config', {})
        images = config.get('norm_map', {}).get('VISUAL', 'IDENTITY')
        if images != 'IDENTITY':
            raise OxygenError(f'{path}: {name} normalises VISUAL by {images}, supported: IDENTITY')
        steps[name] = step
        order.append(name)
    wanted = [name for name in _ORDER if name in steps]
    if (found := [name for name in order if name in _ORDER]) != wanted:
        raise OxygenError(
            f'{path}: has the steps {", ".join(found)}, supported is {", ".join(wanted)}'
        )
    for key, value in _PROMPT_SETTINGS.items():
        if steps.get(_PROMPT, {}).get('config', {}).get(key, value) is not value:
            raise OxygenError(f'{path}: {key} is not {value}, which is not supported')
    return steps


def _relative(
    config: dict[str, Any], pre: Steps, post: Steps, action_dim: int, folder: Path
) -> tuple[bool, ...]:
    """Which actions are relative to the frame's state, () for none (relative_action_processor.py).

    A joint stays absolute if its name holds a word of exclude_joints; without names none does.
    """
    before, after = (
        bool(steps.get(name, {}).get('config', {}).get('enabled'))
        for steps, name in ((pre, _RELATIVE), (post, _ABSOLUTE))
    )
    if not before == after == bool(config.get('use_relative_actions', before)):
        raise OxygenError(
            f'{folder}: {_RELATIVE} is {"on" if before else "off"}, {_ABSOLUTE} is '
            f'{"on" if after else "off"} and use_relative_actions is '
            f'{config.get("use_relative_actions")}: all three must agree'
        )
    if not before:
        return ()
    settings = pre[_RELATIVE]['config']
    words = [str(word).lower() for word in settings.get('exclude_joints') or [] if word]
    names = [str(name).lower() for name in settings.get('action_names') or []][:action_dim]
    named = tuple(not any(word in name for word in words) for name in names)
    return named + (True,) * (action_dim - len(named))


def statistics(folder: Path, options: Options) -> tuple[Statistics, Statistics]:
    """What state and actions are normalised by, each by its own step. Raises OxygenError."""
    config = read_json(folder / 'config.json')
    return (
        _normalised(config, options, folder / _PRE, 'normalizer_processor', 'observation.state'),
        _normalised(config, options, folder / _POST, 'unnormalizer_processor', 'action'),
    )


def _normalised(
    config: dict[str, Any], options: Options, path: Path, name: str, feature: str
) -> Statistics:
    """Statistics of one feature, by the mode that its processor step names."""
    kind, group, what = _FEATURES[feature]
    step = _steps(path).get(name)
    settings = {} if step is None else step.get('config', {})
    norm_map = settings.get('norm_map', config.get('normalization_mapping', _NORM_MAP))
    mode = str(norm_map.get(kind, 'IDENTITY')).lower()
    if mode not in MODES:
        raise OxygenError(
            f'{path}: {name} normalises {kind} by {mode.upper()}, supported: '
            f'{", ".join(MODES).upper()}'
        )
    if mode == 'identity':
        return identity(_width(config, group, feature, path.parent / 'config.json'), feature, path)
    eps = float(settings.get('eps', EPS_RULES['replace_zero_width']))
    if options.statistics is not None:
        return from_json(options.statistics, np.float32, what, mode, eps)
    _check_listed(settings, name, feature, path)
    return from_safetensors(_state_file(path, step), feature, mode, eps)


def _check_listed(settings: dict[str, Any], name: str, feature: str, path: Path) -> None:
    """LeRobot passes on unchanged what a step does not list, whatever its statistics say."""
    for key in ('features', 'normalize_observation_keys'):
        listed = settings.get(key)
        if feature != 'action' and listed is not None and feature not in listed:
            raise OxygenError(
                f'{path}: {name} has statistics of {feature}, but does not list it under {key}; '
                f'list it, or state STATE: IDENTITY in its norm_map'
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
    names = [
        _CAMERA_PREFIX.sub('', name)
        for name, feature in features.items()
        if feature.get('type') == 'VISUAL'
    ]
    # LeRobot writes slots it never fills as empty cameras; they are masked, so they do not count.
    cameras = tuple(name for name in names if not _EMPTY_CAMERA.fullmatch(name))
    if not cameras:
        raise OxygenError(f'{path}: input_features has no feature of type VISUAL')
    return cameras


def _width(config: dict[str, Any], group: str, name: str, path: Path) -> int:
    shape = (config.get(group) or {}).get(name, {}).get('shape')
    if not isinstance(shape, list) or len(shape) != 1:
        raise OxygenError(f'{path}: {group}.{name} has no shape [width], but {shape!r}')
    return count(shape[0], f'{path}: width of {group}.{name}')


def _sizes(config: dict[str, Any], path: Path) -> dict[str, float]:
    if 'chunk_size' not in config:
        raise OxygenError(f'{path}: chunk_size (the action horizon) is missing')
    sizes: dict[str, float] = {'horizon': count(config['chunk_size'], f'{path}: chunk_size')}
    sizes.update(variant_heads(config))
    if 'max_action_dim' in config:
        sizes['action_dim_padded'] = count(config['max_action_dim'], f'{path}: max_action_dim')
    for key in ('min_period', 'max_period'):
        if key in config:
            check_number(config[key], isinstance(config[key], int | float), f'{path}: {key}')
            sizes[key] = config[key]
    return sizes


def _tokenizer_dirs(folder: Path, name: str | None) -> tuple[Path, ...]:
    """tokenizer_name counts only where it is a folder on this machine; nothing is downloaded."""
    named = (folder / name,) if name else ()
    return (folder / 'tokenizer', folder, *named)

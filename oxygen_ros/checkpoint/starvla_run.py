"""StarVLA's run folder: config.yaml, dataset_statistics.json, checkpoints/steps_N_*.

Source: starVLA 0ed0aad2, share_tools.py, base_framework.py and model/tools.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from oxygen_ros.checkpoint.arch import variant_heads
from oxygen_ros.checkpoint.files import read_json
from oxygen_ros.checkpoint.info import Described, Normalization, Scale
from oxygen_ros.checkpoint.run_options import read_run_options
from oxygen_ros.checkpoint.stats import MODES, Statistics, fitted
from oxygen_ros.types import OxygenError

CONFIG = 'config.yaml'
STATISTICS = 'dataset_statistics.json'
PI05 = ('PI05', 'Pi05')
PI0 = ('PI0', 'Pi0')
_STEP = re.compile(r'steps_(\d+)_(pytorch_model\.pt|model\.safetensors)')
_IMAGE_KEYS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')


def is_run(folder: Path) -> bool:
    """Whether a folder is a run of StarVLA, complete or not."""
    return (folder / CONFIG).is_file() or (folder / STATISTICS).is_file()


def read_config(folder: Path) -> dict[str, Any]:
    """config.yaml with a framework that has a name. Raises OxygenError."""
    path = folder / CONFIG
    try:
        config = yaml.safe_load(path.read_text(encoding='utf-8'))
    except FileNotFoundError as error:
        raise OxygenError(f'{path}: does not exist; copy the complete run folder') from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OxygenError(f'{path}: cannot be read as YAML ({error})') from error
    framework = config.get('framework') if isinstance(config, dict) else None
    if not isinstance(framework, dict) or not isinstance(framework.get('name'), str):
        raise OxygenError(f'{path}: framework.name is missing, so the head is not known')
    return config


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The one file of the newest step, or of the step that oxygen.json names."""
    found: dict[int, list[Path]] = {}
    for path in sorted((folder / 'checkpoints').glob('steps_*')):
        if match := _STEP.fullmatch(path.name):
            found.setdefault(int(match[1]), []).append(path)
    if not found:
        raise OxygenError(
            f'{folder / "checkpoints"}: no weights, neither steps_N_model.safetensors nor '
            'steps_N_pytorch_model.pt is there; copy the complete run folder'
        )
    step = read_run_options(folder).step or max(found)
    if step not in found:
        raise OxygenError(
            f'{folder / "checkpoints"}: has no step {step}, only '
            f'{", ".join(map(str, sorted(found)))}; change "step" in oxygen.json'
        )
    return (min(found[step], key=lambda path: path.suffix == '.pt'),)


def describe(folder: Path, framework: Mapping[str, Any]) -> Described:
    """What a run with the PI05 or the PI0 head states of itself."""
    pi0 = framework.get('name') in PI0
    tokenizer = framework.get('tokenizer') or {}
    resolution = tuple(int(side) for side in framework.get('image_resolution', (224, 224)))
    return Described(
        format='starvla',
        cameras=tuple(framework.get('image_keys', _IMAGE_KEYS)),
        state_dim=None,
        action_dim=None,
        relative_actions=(),
        sizes=_sizes(framework),
        image_resolution=(resolution[0], resolution[1]),
        tokenizer_dirs=_tokenizer_dirs(folder, str(tokenizer.get('model_path') or '')),
        tokenizer_max_length=int(framework.get('max_token_len', 200)),
        time_rule='accumulate_all_float32',
        image_resize='pil_bilinear',
        eps_rule='keep_value',
        state_in_prompt=bool(framework.get('discrete_state_input', not pi0)),
        prompt_state_dim=int(framework.get('max_state_dim', 32)),
        prompt_state_pad=float(tokenizer.get('pad_state_value', -2.0)),
        embeds_state=pi0,
    )


def _sizes(framework: Mapping[str, Any]) -> dict[str, float]:
    """Head counts and horizon; all other sizes are read off the tensors."""
    stated = framework.get('paligemma_config') or {}
    heads = {'heads': stated.get('num_heads', 8), 'kv_heads': stated.get('num_kv_heads', 1)}
    horizon = {'horizon': int(framework.get('action_horizon', 50))}
    return {**variant_heads({}), **{k: int(v) for k, v in heads.items()}, **horizon}


def _tokenizer_dirs(folder: Path, model_path: str) -> tuple[Path, ...]:
    """The run names a SentencePiece file; the same words as tokenizer.json may lie beside it."""
    named = ((folder / model_path).parent,) if model_path else ()
    return (folder / 'tokenizer', folder, *named)


def normalization(folder: Path, robot_tag: str) -> Normalization:
    """How StarVLA's tools scale one robot's state and actions. Raises OxygenError.

    Its training code scales the state in float32, its un-normaliser actions in float64.
    """
    run = read_run_options(folder)
    path = run.statistics or folder / STATISTICS
    robot = _robot(path, robot_tag)
    state = _scale(robot, 'state', run.state_normalization, np.dtype(np.float32), path)
    if state.mode == 'quantiles':
        state = replace(state, limit=2.2)
    action = _scale(robot, 'action', run.action_normalization, np.dtype(np.float64), path)
    return Normalization(state, replace(action, limit=1.0), 'keep_value', run.gripper)


def robot_tags(path: Path) -> dict[str, Any]:
    """Every robot of a statistics file -> its statistics. Raises OxygenError."""
    if not path.is_file():
        raise OxygenError(
            f'{path}: does not exist, and without it actions have no units; copy the complete '
            'run folder, or name a file under "statistics" in oxygen.json'
        )
    robots = {tag: entry for tag, entry in read_json(path).items() if isinstance(entry, dict)}
    if not robots:
        raise OxygenError(f'{path}: has no robot with statistics')
    return robots


def _robot(path: Path, robot_tag: str) -> Mapping[str, Any]:
    robots = robot_tags(path)
    if not robot_tag and len(robots) == 1:
        return next(iter(robots.values()))
    if robot_tag not in robots:
        raise OxygenError(
            f'{path}: robot_tag is {robot_tag!r}, the checkpoint knows {", ".join(robots)}; '
            'set robot_tag to one of these'
        )
    return robots[robot_tag]


def _scale(
    robot: Mapping[str, Any], what: str, mode: str, dtype: np.dtype[Any], path: Path
) -> Scale:
    """Of state or actions. What has no width keeps its value, as does an action without a mask."""
    entry = robot.get(what) or {}
    if what == 'state' and not entry:
        mode = 'identity'
    try:
        width = len(entry.get('q01', entry.get('min', ())))
        if mode == 'identity':
            ones = np.ones(width, dtype)
            return Scale(mode, np.zeros(width, dtype), ones, ones)
        first, second = (np.asarray(entry[key], dtype).reshape(-1) for key in MODES[mode])
        mask = np.broadcast_to(np.asarray(entry.get('mask', True), dtype=bool), first.shape)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OxygenError(
            f'{path}: {what} has no usable {" and ".join(MODES[mode])}, which it is normalised by'
        ) from error
    first, second = fitted(Statistics(mode, first, second, 0.0, what, path), None, cut=False)
    span = second if mode == 'mean_std' else second - first
    one = dtype.type(1)
    return Scale(mode, first, np.where(span == 0, one, span), span, mask & (span != 0))

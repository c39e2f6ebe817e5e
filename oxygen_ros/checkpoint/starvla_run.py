"""StarVLA's run folder: config.yaml, checkpoints/steps_N_*, and what PI0 and PI05 state there.

Source: starVLA 0ed0aad2, share_tools.py, base_framework.py, PI0.py, pi0_05_to_starvla.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from oxygen_ros.checkpoint.arch import variant_heads
from oxygen_ros.checkpoint.info import Described, Normalization
from oxygen_ros.checkpoint.options import FILE
from oxygen_ros.checkpoint.run_options import read_run_options
from oxygen_ros.checkpoint.starvla_stats import STATISTICS, normalization, robot_tags
from oxygen_ros.types import OxygenError

CONFIG = 'config.yaml'
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


def openpi_rule(folder: Path, config: Mapping[str, Any]) -> str:
    """How StarVLA's LIBERO evaluation scales state and actions of a PI0 or PI05, '' if it is not
    for this run: one converted from openpi's, by the name of its robot, or trained on that mix.
    """
    name = 'pi0' if config['framework']['name'] in PI0 else 'pi05'
    path = read_run_options(folder).statistics or folder / STATISTICS
    robots = list(robot_tags(path)) if path.is_file() else []
    is_converted = robots == [f'openpi_{name}_libero_franka']
    if not is_converted and _data(config).get('data_mix') != 'openpi_libero_all':
        return ''
    return 'openpi_mean_std' if name == 'pi0' else 'openpi_quantiles'


def pi_normalization(
    folder: Path, robot_tag: str, sees_state: bool, dims: tuple[int | None, int | None]
) -> Normalization:
    """Of a run with the PI0 or PI05 head; see starvla_stats. Raises OxygenError."""
    config = read_config(folder)
    said = read_run_options(folder).include_state
    said = _data(config).get('include_state') if said is None else said
    if sees_state and said in (False, 'False'):
        raise OxygenError(
            f'{folder}: include_state is false, but the network is told the state '
            f'({config["framework"]["name"]}, discrete_state_input): StarVLA then gives it '
            'padding, which is not supported; if its prompt holds the task alone, set '
            f'state_in_prompt to false in {FILE}'
        )
    return normalization(folder, robot_tag, sees_state, dims, openpi_rule(folder, config))


def _data(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return (config.get('datasets') or {}).get('vla_data') or {}


def describe(folder: Path, config: Mapping[str, Any]) -> Described:
    """What a run with the PI05 or the PI0 head states of itself."""
    framework = config['framework']
    pi0 = framework.get('name') in PI0
    # as openpi's pi0_libero: all but the gripper count from the state
    relative = (*[True] * 6, False) if pi0 and openpi_rule(folder, config) else ()
    tokenizer = framework.get('tokenizer') or {}
    resolution = tuple(int(side) for side in framework.get('image_resolution', (224, 224)))
    return Described(
        format='starvla',
        cameras=tuple(framework.get('image_keys', _IMAGE_KEYS)),
        state_dim=None,
        action_dim=None,
        relative_actions=relative,
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

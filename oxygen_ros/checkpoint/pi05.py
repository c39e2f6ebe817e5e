"""Folders of pi0.5, by LeRobot, openpi or StarVLA, and of StarVLA's pi0.

What small files and tensor headers say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np

from oxygen_ros.checkpoint import lerobot, openpi, starvla_run
from oxygen_ros.checkpoint.arch import EMBED, LANGUAGE, LM_HEAD, Pi05Arch, arch_from_shapes
from oxygen_ros.checkpoint.files import json_kinds, read_json
from oxygen_ros.checkpoint.info import (
    EPS_RULES,
    Described,
    Normalization,
    Pi05Info,
    Pi05Layout,
    Scale,
    Survey,
    noting,
)
from oxygen_ros.checkpoint.options import Options, read_options
from oxygen_ros.checkpoint.run_options import PI_KEYS
from oxygen_ros.checkpoint.stats import Statistics, check_moved, fitted
from oxygen_ros.checkpoint.weights import FLOATS, Naming, StoredTensor, read_index, weight_files
from oxygen_ros.types import OxygenError

FAMILY = 'pi05'
PI0_FAMILY = 'pi0'
FORMATS = (
    'LeRobot\'s pi0.5 (config.json with "type": "pi05"), openpi\'s pi0.5 (config.json with '
    '"action_horizon", assets/<id>/norm_stats.json)'
)
_Value = TypeVar('_Value')
_NO_WORDS = 'the expert has no words of its own'
NAMING = Naming(
    renames=(
        (re.compile(r'^model\.'), ''),
        # StarVLA's names
        (re.compile(r'^vlm\.model\.'), 'paligemma_with_expert.paligemma.'),
        (re.compile(r'^action_head\.gemma_expert\.'), 'paligemma_with_expert.gemma_expert.'),
        (re.compile(r'^action_head\.'), ''),
        (re.compile(r'^action_time_mlp_(in|out)\.'), r'time_mlp_\1.'),
    ),
    extras={
        _NO_WORDS: re.compile(r'^paligemma_with_expert\.gemma_expert\.lm_head\.weight$'),
        'pi0.5 writes the state into the prompt': re.compile(r'^state_proj\.(weight|bias)$'),
        'norms of the expert are adaptive and have no weight': re.compile(
            r'^paligemma_with_expert\.gemma_expert\.model\.(layers\.\d+\.\w*layer)?norm\.weight$'
        ),
    },
    tied={EMBED: LM_HEAD, LM_HEAD: EMBED},
)
PI0_NAMING = replace(NAMING, extras={_NO_WORDS: NAMING.extras[_NO_WORDS]})


def recognises(folder: Path) -> bool:
    """Whether a folder is LeRobot's or openpi's, by what it holds."""
    if (folder / 'assets').is_dir() or (folder / 'params').is_dir():
        return True
    path = folder / 'config.json'
    config = read_json(path) if path.exists() else {}
    return 'type' in config or 'action_horizon' in config


def survey(folder: Path, robot_tag: str) -> Survey:
    """Read what can be read of a pi0.5 folder, whatever is wrong with parts of it.

    Raises OxygenError when nothing can be said of it.
    """
    others = PI_KEYS if starvla_run.is_run(_checked_folder(folder)) else ()
    options = read_options(folder, others)
    maker, described = _describe(folder, options)
    if robot_tag and maker is not starvla_run:
        raise OxygenError(
            f'robot_tag is {robot_tag!r}, but this pi0.5 checkpoint is of one robot: leave it '
            'empty'
        )
    problems: dict[str, str] = {}
    weights = normalization = tokenizer_dir = None
    with noting(problems, 'weights'):
        find = starvla_run.weight_files if maker is starvla_run else weight_files
        weights = _weights(find(folder), described, options, folder)
    with noting(problems, 'statistics'), json_kinds(folder):
        if maker is starvla_run:
            told = _either(options.state_in_prompt, described.state_in_prompt)
            sees_state = described.embeds_state or told
            dims = options.state_dim, options.action_dim
            normalization = starvla_run.pi_normalization(folder, robot_tag, sees_state, dims)
        else:
            stats = maker.statistics(folder, options)
            normalization = _normalization(stats, described, options)
        _check_width(normalization, weights, folder)
    with noting(problems, 'tokenizer'):
        tokenizer_dir = _tokenizer_dir(described, options, folder)
    layout = _layout(folder, described, options, weights, normalization)
    notes = {'prompt': described.old_prompt} if described.old_prompt else {}
    return Survey(Pi05Info, layout, normalization, tokenizer_dir, problems, notes)


@dataclass(frozen=True)
class _Weights:
    """What the headers of the weight files tell."""

    files: tuple[Path, ...]
    arch: Pi05Arch
    dtype: str
    tied_head: bool


def _weights(
    files: tuple[Path, ...], described: Described, options: Options, folder: Path
) -> _Weights:
    index = read_index(files, _naming(described))
    if not described.embeds_state:
        _refuse_pi0(index, folder)
    elif 'state_proj.weight' not in index:
        raise OxygenError(
            f'{folder}: framework.name is PI0, but its weights have no state_proj.weight, so they '
            'are not of a pi0; give the config.yaml that belongs to them'
        )
    return _Weights(
        files,
        _arch(index, described, options, folder),
        FLOATS[index[LANGUAGE + 'layers.0.self_attn.q_proj.weight'].dtype],
        tied_head=not (EMBED in index and LM_HEAD in index),
    )


def _naming(described: Described) -> Naming:
    return PI0_NAMING if described.embeds_state else NAMING


def _layout(
    folder: Path,
    described: Described,
    options: Options,
    weights: _Weights | None,
    normalization: Normalization | None,
) -> Pi05Layout | None:
    state_dim = options.state_dim or described.state_dim
    action_dim = options.action_dim or described.action_dim
    if normalization is not None:
        state_dim, action_dim = len(normalization.state.origin), len(normalization.action.origin)
    if weights is None or state_dim is None or action_dim is None:
        return None
    arch, words = weights.arch, options.tokenizer_max_length or described.tokenizer_max_length
    return Pi05Layout(
        path=folder,
        format=described.format,
        family=PI0_FAMILY if described.embeds_state else FAMILY,
        cameras=described.cameras,
        state_dim=state_dim,
        action_dim=action_dim,
        horizon=arch.horizon,
        max_prefix=len(described.cameras) * arch.tokens_per_camera + words,
        dtype=weights.dtype,
        weight_files=weights.files,
        naming=_naming(described),
        arch=arch,
        tokenizer_max_length=words,
        image_resolution=(arch.image_size, arch.image_size),
        tied_head=weights.tied_head,
        time_rule=options.time_rule or described.time_rule,
        image_resize=options.image_resize or described.image_resize,
        prompt_layout=options.prompt_layout or 'bidirectional',
        state_in_prompt=_either(options.state_in_prompt, described.state_in_prompt),
        prompt_state_dim=options.prompt_state_dim or described.prompt_state_dim,
        prompt_state_pad=_either(options.prompt_state_pad, described.prompt_state_pad),
        relative_actions=_relative(described, options, state_dim, action_dim, folder),
        denoise_steps=described.denoise_steps,
    )


def _either(given: _Value | None, described: _Value) -> _Value:
    return described if given is None else given


def _relative(
    described: Described, options: Options, state_dim: int, action_dim: int, folder: Path
) -> tuple[bool, ...]:
    """One value per action, or () where all are absolute."""
    given = options.relative_actions
    relative = described.relative_actions if given is None else tuple(given)
    if not any(relative):
        return ()
    if len(relative) != action_dim or state_dim < action_dim:
        raise OxygenError(
            f'{folder}: relative_actions has {len(relative)} values for {action_dim} actions and '
            f'a state of {state_dim}: it needs one per action, and a state for each'
        )
    return relative


def _checked_folder(folder: Path) -> Path:
    if (folder / 'params').is_dir() and not (folder / 'model.safetensors').exists():
        raise OxygenError(
            f"{folder}: is openpi's JAX checkpoint; convert it once with openpi's "
            'examples/convert_jax_model_to_pytorch.py and give the converted folder'
        )
    return folder


def _describe(folder: Path, options: Options) -> tuple[ModuleType, Described]:
    """The module of the checkpoint's maker, and what it reads of the folder."""
    path = folder / 'config.json'
    config = read_json(path) if path.exists() else {}
    with json_kinds(folder):
        if starvla_run.is_run(folder):
            config = starvla_run.read_config(folder)
            return starvla_run, starvla_run.describe(folder, config)
        if 'type' in config:
            return lerobot, lerobot.describe(folder, config, options)
        return openpi, openpi.describe(folder, config, options)


def _refuse_pi0(index: dict[str, StoredTensor], folder: Path) -> None:
    stored = index.get('time_mlp_in.weight')
    if stored is not None and len(stored.shape) == 2 and stored.shape[1] == 2 * stored.shape[0]:
        raise OxygenError(f'{folder}: {stored.key} is of pi0, supported: pi0.5')


def _arch(
    index: dict[str, StoredTensor], described: Described, options: Options, folder: Path
) -> Pi05Arch:
    stated = {**described.sizes, **options.architecture}
    shapes = {name: stored.shape for name, stored in index.items()}
    arch = arch_from_shapes(shapes, stated, str(folder))
    resolution = described.image_resolution
    if resolution is not None and resolution != (arch.image_size, arch.image_size):
        raise OxygenError(
            f'{folder / "config.json"}: image_resolution is {list(resolution)}, '
            f'the vision tower was made for {arch.image_size} x {arch.image_size}'
        )
    return arch


def _normalization(
    stats: tuple[Statistics, Statistics], described: Described, options: Options
) -> Normalization:
    rule = options.eps_rule or described.eps_rule
    own = rule == described.eps_rule

    def scale(part: str, stats: Statistics, stated: int | None, dim: int | None) -> Scale:
        first, second = fitted(stats, stated or dim, cut=stated is not None)
        check_moved(stats, first, second, part, options.constant_dimensions.get(part, []))
        return _scale(stats.mode, first, second, rule, stats.eps if own else EPS_RULES[rule])

    return Normalization(
        scale('state', stats[0], options.state_dim, described.state_dim),
        scale('action', stats[1], options.action_dim, described.action_dim),
        rule,
    )


def _scale(mode: str, first: np.ndarray, second: np.ndarray, rule: str, eps: float) -> Scale:
    small = first.dtype.type(eps)
    if mode == 'identity':
        return Scale(mode, first, second, second)
    if mode == 'mean_std':
        back = second + small if rule == 'add_to_width' else second
        return Scale(mode, first, second + small, back)
    width = second - first
    width = width + small if rule == 'add_to_width' else np.where(width == 0, small, width)
    return Scale(mode, first, width, width)


def _check_width(normalization: Normalization, weights: _Weights | None, folder: Path) -> None:
    """No more than the network has; it is not known where the weights cannot be read."""
    if weights is None:
        return
    arch, state, action = weights.arch, normalization.state, normalization.action
    widths = [('actions', len(action.origin), arch.action_dim_padded)]
    if arch.state_dim_padded:
        widths.append(('values of the state', len(state.origin), arch.state_dim_padded))
    for what, given, most in widths:
        if given > most:
            raise OxygenError(
                f'{folder}: the statistics have {given} {what}, the network only {most}'
            )


def _tokenizer_dir(described: Described, options: Options, folder: Path) -> Path:
    places = (options.tokenizer,) if options.tokenizer else described.tokenizer_dirs
    for place in places:
        if (place / 'tokenizer.json').is_file():
            return place
    raise OxygenError(
        f'{folder}: no tokenizer.json in {" or ".join(str(place) for place in places)}; copy '
        'PaliGemma\'s tokenizer files there, or name their folder under "tokenizer" in oxygen.json'
    )

"""Xiaomi-Robotics-0's folder: config.json, sharded safetensors, preprocessor_config.json.

Source: its public model card and runtime (configuration_mibot, processing_mibot).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.checkpoint.files import json_kinds, read_json
from oxygen_ros.checkpoint.info import CheckpointInfo, Layout, Survey, noting
from oxygen_ros.checkpoint.options import FILE, check_keys, check_number, existing
from oxygen_ros.checkpoint.qwen import (
    EMBED,
    LM_HEAD,
    PREPROCESSOR,
    RESIZES,
    image_rule,
    tied_names,
    word_dtype,
)
from oxygen_ros.checkpoint.weights import Naming, StoredTensor, read_index, weight_files
from oxygen_ros.types import OxygenError

FAMILY = 'xiaomi_robotics_0'
FORMATS = 'Xiaomi-Robotics-0'
MODEL_TYPE = 'mibot'
VLM = 'vlm.'
NAMING = Naming(tied=tied_names(VLM))
# Below this standard deviation a value is not an action, and masked (processing_mibot).
LEAST_STD = 1e-5
# Camera slot -> what the prompt calls its view, where oxygen.json names no others.
VIEWS = {
    'base_view': 'Base View',
    'left_wrist_view': 'Left-Wrist View',
    'right_wrist_view': 'Right-Wrist View',
}
_IMAGE_TOKENS = 320  # of a camera, reserved by default: 640 x 480 takes 300
_TEXT_TOKENS = 200
# What later training of the family varies: name -> also called so in its config.json, default
_VARIANTS: dict[str, tuple[str, int | None]] = {
    'action_position_offset': ('inference_action_position_offset', 0),
    'local_window': ('local_window', None),
    'prefix_length': ('prefix_length', 0),
}
_COUNTS = ('state_dim', 'action_dim', 'max_image_tokens', 'tokenizer_max_length')
_DIT = ('hidden_size', 'num_hidden_layers', 'head_dim')


@dataclass(frozen=True, eq=False)
class StepScale:
    """Actions per time step: robot units = normalised * std + mean, float32 [H, D] each.

    D is the network's width. The state is not normalised. robot: the tag they are of.
    """

    robot: str
    mean: np.ndarray
    std: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        """Where a value is an action, bool [H, D]."""
        return self.std > LEAST_STD

    def summary(self) -> str:
        """What is normalised by what, for a pre-flight."""
        steps, width = self.mean.shape[0], int(self.mask.any(0).sum())
        return f'{steps} steps of {width} actions by mean and std, of robot {self.robot}'

    def never_moved(self) -> str:
        """Which single values had no spread in training, or ''; whole columns are padding."""
        used = self.mask.any(0)
        places = [tuple(place) for place in np.argwhere(~self.mask & used).tolist()]
        if not places:
            return ''
        return (
            f'actions (step, joint) {places} (counted from 0) never moved in training: they are '
            'masked, and stay at their mean'
        )


@dataclass(frozen=True, eq=False)
class XiaomiLayout(Layout):
    """What is Xiaomi-Robotics-0's own.

    vlm: the backbone's configuration as config.json has it. dit: hidden_size, num_hidden_layers,
    head_dim of the action expert. state_width, action_width: inside the network, zero padded.
    image, image_resize: values of the Qwen image processor, and its form. tied_head: only one of
    the backbone's head and embedding is stored. views: titles in the prompt, one per camera.
    image_tokens, text_tokens: the most that one camera, and all words together, may take.
    action_position_offset: added to the positions of actions. local_window: how many earlier
    actions an action sees, None for all. prefix_length: how many actions of a running chunk may
    be given to the next as they are.
    """

    vlm: Mapping[str, Any]
    dit: Mapping[str, int]
    state_width: int
    action_width: int
    tied_head: bool
    image: Mapping[str, Any]
    image_resize: str
    views: tuple[str, ...]
    image_tokens: int
    text_tokens: int
    action_position_offset: int
    local_window: int | None
    prefix_length: int


@dataclass(frozen=True, eq=False)
class XiaomiInfo(XiaomiLayout, CheckpointInfo):
    """A Xiaomi-Robotics-0 checkpoint folder."""

    normalization: StepScale


def recognises(folder: Path) -> bool:
    """Whether config.json is of this family."""
    path = folder / 'config.json'
    return path.is_file() and read_json(path).get('model_type') == MODEL_TYPE


def survey(folder: Path, robot_tag: str) -> Survey:
    """Read what can be read of the folder. Raises OxygenError when nothing can be said of it."""
    config, options = read_json(folder / 'config.json'), _options(folder)
    problems: dict[str, str] = {}
    index = scale = tokenizer_dir = layout = None
    files: tuple[Path, ...] = ()
    with noting(problems, 'weights'):
        files = weight_files(folder)
        index = read_index(files, NAMING)
        word_dtype(index, VLM, f'{folder}: not a complete Xiaomi-Robotics-0 checkpoint')
    with noting(problems, 'statistics'), json_kinds(folder):
        scale = _statistics(folder, robot_tag, int(config['action_dim']))
    with noting(problems, 'tokenizer'):
        tokenizer_dir = _tokenizer_dir(folder, options)
    if scale is not None and index is not None and 'weights' not in problems:
        with json_kinds(folder):
            layout = _layout(folder, config, options, scale, files, index)
    return Survey(XiaomiInfo, layout, scale, tokenizer_dir, problems)


def _options(folder: Path) -> dict[str, Any]:
    """oxygen.json of this family: counts, variants, `tokenizer` and `views`."""
    path = folder / FILE
    values = read_json(path) if path.exists() else {}
    known = ('views', 'tokenizer', 'image_resize', *_COUNTS, *_VARIANTS)
    check_keys(values, known, f'{path}: unknown key')
    for key in _COUNTS:
        check_number(values.get(key, 1), isinstance(values.get(key, 1), int), f'{path}: {key}')
    if values.get('image_resize', 'pil') not in RESIZES:
        raise OxygenError(
            f'{path}: image_resize is {values["image_resize"]!r}, allowed: {", ".join(RESIZES)}'
        )
    views = values.get('views', VIEWS)
    titled = isinstance(views, dict) and all(isinstance(title, str) for title in views.values())
    if not titled or not views:
        raise OxygenError(
            f'{path}: views must be an object of camera slot: title in the prompt, as {VIEWS}'
        )
    return values


def _statistics(folder: Path, robot_tag: str, width: int) -> StepScale:
    path = folder / PREPROCESSOR
    robots = read_json(path).get('action_config')
    if not isinstance(robots, dict) or not robots:
        raise OxygenError(f'{path}: has no action_config, the statistics of the actions')
    if robot_tag not in robots and (robot_tag or len(robots) > 1):
        raise OxygenError(
            f'robot_tag is {robot_tag!r}: {path} has statistics of {", ".join(sorted(robots))}; '
            'set robot_tag to one of them'
        )
    tag = robot_tag or next(iter(robots))
    mean, std = (np.asarray(robots[tag][key], np.float32) for key in ('mean', 'std'))
    if mean.shape != std.shape or mean.ndim != 2 or mean.shape[1] != width:
        raise OxygenError(
            f'{path}: statistics of {tag} have shapes {list(mean.shape)} and {list(std.shape)}, '
            f'[steps, {width}] expected'
        )
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()):
        raise OxygenError(f'{path}: statistics of {tag} are not finite, or a std is below 0')
    scale = StepScale(tag, mean, std)
    if not scale.mask.any():
        raise OxygenError(f'{path}: statistics of {tag} have std = 0 everywhere')
    return scale


def _tokenizer_dir(folder: Path, options: Mapping[str, Any]) -> Path:
    place = folder
    if 'tokenizer' in options:
        place = existing(folder / str(options['tokenizer']), f'{folder / FILE}: tokenizer')
    if not (place / 'tokenizer.json').is_file():
        raise OxygenError(
            f'{place}: has no tokenizer.json; copy the complete checkpoint, or name the folder '
            'under "tokenizer" in oxygen.json'
        )
    return place


def _layout(
    folder: Path,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    scale: StepScale,
    files: tuple[Path, ...],
    index: Mapping[str, StoredTensor],
) -> XiaomiLayout:
    views = dict(options.get('views', VIEWS))
    image_tokens = options.get('max_image_tokens', _IMAGE_TOKENS)
    text_tokens = options.get('tokenizer_max_length', _TEXT_TOKENS)
    if config.get('state_length', 1) != 1:
        raise OxygenError(
            f'{folder / "config.json"}: state_length is {config["state_length"]}, supported: 1'
        )
    used = int(np.flatnonzero(scale.mask.any(0))[-1]) + 1
    return XiaomiLayout(
        path=folder,
        format='mibot',
        family=FAMILY,
        cameras=tuple(views),
        state_dim=_at_most(options, 'state_dim', int(config['state_dim']), folder),
        action_dim=_at_most(options, 'action_dim', int(config['action_dim']), folder, used),
        horizon=len(scale.mean),
        max_prefix=len(views) * image_tokens + text_tokens,
        dtype=word_dtype(index, VLM, str(folder)),
        weight_files=files,
        naming=NAMING,
        vlm=config['vlm_config'],
        dit={key: int(config['dit_config'][key]) for key in _DIT},
        state_width=int(config['state_dim']),
        action_width=int(config['action_dim']),
        tied_head=not {VLM + EMBED, VLM + LM_HEAD} <= index.keys(),
        image=image_rule(folder, config['vlm_config']),
        image_resize=options.get('image_resize', 'pil'),  # its makers say use_fast=False
        views=tuple(views.values()),
        image_tokens=image_tokens,
        text_tokens=text_tokens,
        **_variants(folder, config, options),
    )


def _variants(
    folder: Path, config: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """What later training varies, by oxygen.json, else by config.json. Raises OxygenError."""
    found: dict[str, Any] = {}
    for name, (other, default) in _VARIANTS.items():
        places = [(options, name, FILE), (config, name, 'config.json')]
        places.append((config, other, 'config.json'))
        given = next((place for place in places if place[0].get(place[1]) is not None), None)
        if given is None:
            found[name] = default
            continue
        values, key, file = given
        if type(values[key]) is not int or values[key] < 0:
            raise OxygenError(
                f'{folder / file}: {key} is {values[key]!r}, a whole number from 0 is expected'
            )
        found[name] = values[key]
    return found


def _at_most(
    options: Mapping[str, Any], key: str, width: int, folder: Path, default: int | None = None
) -> int:
    """The robot's own width, not more than the network's."""
    value = int(options.get(key, default or width))
    if value > width:
        raise OxygenError(f'{folder / FILE}: {key} is {value}, the network has {width}')
    return value

"""StarVLA's runs: which head, on which backbone, of which sizes.

Source: starVLA 0ed0aad2, model/framework/VLM4A and model/modules/action_model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from oxygen_ros.checkpoint import pi05, starvla_run
from oxygen_ros.checkpoint.files import json_kinds, read_json
from oxygen_ros.checkpoint.info import CheckpointInfo, Layout, Normalization, Survey, noting
from oxygen_ros.checkpoint.options import FILE
from oxygen_ros.checkpoint.qwen import (
    EMBED,
    LM_HEAD,
    PREPROCESSOR,
    RESIZES,
    image_rule,
    is_tied,
    tied_names,
    word_dtype,
)
from oxygen_ros.checkpoint.run_options import RunOptions, read_run_options
from oxygen_ros.checkpoint.starvla_head import HEADS, Head, HeadSizes, head_sizes, read_head
from oxygen_ros.checkpoint.starvla_stats import normalization
from oxygen_ros.checkpoint.weights import Naming, StoredTensor, read_index
from oxygen_ros.types import OxygenError

FAMILY = 'starvla'
VLM = 'qwen_vl_interface.model.'
FORMATS = (
    f"StarVLA's runs (config.yaml with framework.name {', '.join(HEADS)}, or "
    f'{starvla_run.PI05[0]}, a pi0.5, or {starvla_run.PI0[0]}, a pi0)'
)


@dataclass(frozen=True, eq=False)
class StarvlaLayout(Layout):
    """What is StarVLA's own.

    head: see Head, as this run has it. name: of the head. vlm, image: the backbone's config.json
    and the values of its image processor. base_vlm: folder of both. tied_head: only one of the
    backbone's head and embedding is stored, and it serves as both. buckets: the flow time 1.0 in
    the head's integers. include_state: whether the head was trained with the state. prompt: text
    around {instruction}. image_size: (width, height) that images are squeezed to, None where they
    are not. image_resize: of the image processor, one of RESIZES. image_tokens, text_tokens: the
    most that one camera, and all words together, may take.
    """

    head: Head
    name: str
    vlm: Mapping[str, Any]
    image: Mapping[str, Any]
    base_vlm: Path
    tied_head: bool
    buckets: int
    include_state: bool
    prompt: str
    image_size: tuple[int, int] | None
    image_resize: str
    image_tokens: int
    text_tokens: int
    fast_tokenizer: Path | None
    max_action_tokens: int
    sizes: HeadSizes


@dataclass(frozen=True, eq=False)
class StarvlaInfo(StarvlaLayout, CheckpointInfo):
    """A run folder of StarVLA."""

    normalization: Normalization


def recognises(folder: Path) -> bool:
    """Whether a folder is a run of StarVLA, complete or not."""
    return starvla_run.is_run(folder)


def survey(folder: Path, robot_tag: str) -> Survey:
    """Read what can be read of a run. Raises OxygenError when nothing can be said of it."""
    config = starvla_run.read_config(folder)
    name = config['framework']['name']
    if name in (*starvla_run.PI05, *starvla_run.PI0):
        return pi05.survey(folder, robot_tag)
    if name not in HEADS:
        raise OxygenError(
            f'{folder / starvla_run.CONFIG}: framework.name is {name!r}, supported: '
            f'{", ".join((*HEADS, *starvla_run.PI05, *starvla_run.PI0))}'
        )
    run = read_run_options(folder, ())
    problems: dict[str, str] = {}
    index = norm = base = layout = None
    files: tuple[Path, ...] = ()
    with noting(problems, 'weights'):
        files = starvla_run.weight_files(folder)
        index = _index(files, folder)
    with noting(problems, 'statistics'), json_kinds(folder):
        action = config['framework'].get('action_model') or {}
        norm = normalization(
            folder,
            robot_tag,
            _include_state(config, run),
            (run.state_dim, None),
            lacking=int(action.get('state_dim') or _action_dim(action)),
        )
    with noting(problems, 'tokenizer'):
        base = _base_vlm(folder, config['framework'], run)
    if index is not None and norm is not None and base is not None:
        with json_kinds(folder):
            layout = _layout(folder, config, run, norm, base, files, index)
    return Survey(StarvlaInfo, layout, norm, base, problems)


def _index(files: tuple[Path, ...], folder: Path) -> dict[str, StoredTensor]:
    index = read_index(files, Naming())
    word_dtype(index, VLM, f'{folder}: not a complete StarVLA checkpoint: {files[0].name}')
    return index


def _base_vlm(folder: Path, framework: Mapping[str, Any], run: RunOptions) -> Path:
    """The backbone's folder; the run holds its weights, but not its tokenizer."""
    named = str((framework.get('qwenvl') or {}).get('base_vlm') or '')
    places = [run.base_vlm] if run.base_vlm else [folder / 'base_vlm', folder / named]
    if named and not run.base_vlm:
        places += [Path(named), folder / Path(named).name, folder.parent / Path(named).name]
    for place in places:
        if all((place / file).is_file() for file in _BASE_FILES):
            return place
    raise OxygenError(
        f'{folder}: its base model {named} is in none of {", ".join(map(str, places))}: copy it '
        f'without its weights ({", ".join(_BASE_FILES)}) to {folder / "base_vlm"}, or name its '
        'folder under "base_vlm" in oxygen.json'
    )


_BASE_FILES = ('config.json', 'tokenizer.json', PREPROCESSOR)


def _layout(
    folder: Path,
    config: Mapping[str, Any],
    run: RunOptions,
    norm: Normalization,
    base: Path,
    files: tuple[Path, ...],
    index: Mapping[str, StoredTensor],
) -> StarvlaLayout:
    framework, data = config['framework'], _data(config)
    name, action = framework['name'], framework.get('action_model') or {}
    head = read_head(name, action, str(folder / starvla_run.CONFIG))
    vlm = read_json(base / 'config.json')
    image = image_rule(base, vlm)
    # QwenFast gives the processor its images as they come.
    resized = None if head.conditioned == 'tokens' else data.get('obs_image_size')
    image_size = (int(resized[0]), int(resized[1])) if resized else None
    image_tokens = _image_tokens(image_size, image, run)
    include_state = _include_state(config, run)
    _check(folder, run, norm, action)
    state_dim = len(norm.state.origin)
    tied_head = is_tied(vlm) and not {VLM + EMBED, VLM + LM_HEAD} <= index.keys()
    return StarvlaLayout(
        path=folder,
        format='starvla',
        family=FAMILY,
        cameras=run.cameras,
        state_dim=state_dim,
        action_dim=_action_dim(action),
        horizon=head.horizon,
        max_prefix=len(run.cameras) * image_tokens + run.tokenizer_max_length,
        dtype=word_dtype(index, VLM, str(folder)),
        weight_files=files,
        naming=naming(head, include_state, tied_head),
        head=head,
        name=name,
        vlm=vlm,
        image=image,
        base_vlm=base,
        tied_head=tied_head,
        buckets=int(action.get('num_timestep_buckets', 1000)),
        include_state=include_state,
        prompt=str(data.get('CoT_prompt') or '{instruction}'),
        image_size=image_size,
        image_resize=_image_resize(run, folder),
        image_tokens=image_tokens,
        text_tokens=run.tokenizer_max_length,
        fast_tokenizer=_fast_tokenizer(folder, head, run),
        max_action_tokens=run.max_action_tokens,
        sizes=head_sizes(
            name,
            head,
            action,
            vlm,
            {key: stored.shape for key, stored in index.items()},
            state_dim if head.state == 'embedded' and include_state else 0,
            run.attention_heads,
            str(folder),
        ),
    )


def _check(folder: Path, run: RunOptions, norm: Normalization, action: Mapping[str, Any]) -> None:
    """What no other part would notice. Raises OxygenError."""
    if not run.cameras:
        raise OxygenError(
            f'{folder}: a run does not say which cameras its prompt has a place for: name them in '
            f'the order of training under "cameras" in {FILE}'
        )
    if len(norm.action.origin) != _action_dim(action):
        raise OxygenError(
            f'{folder}: the statistics have {len(norm.action.origin)} actions, the head '
            f'{_action_dim(action)}'
        )


def _action_dim(action: Mapping[str, Any]) -> int:
    return int(action.get('action_dim', 7))


def _include_state(config: Mapping[str, Any], run: RunOptions) -> bool:
    """Whether the head is told the state."""
    state = _data(config).get('include_state') if run.include_state is None else run.include_state
    return (
        state not in (None, False, 'False') and HEADS[config['framework']['name']].state != 'none'
    )


def _data(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return (config.get('datasets') or {}).get('vla_data') or {}


def naming(head: Head, include_state: bool, tied_head: bool) -> Naming:
    """Tensors are called as in the run; some that every run holds are not read."""
    extras = {}
    if head.conditioned == 'layers':
        extras['the head gives what its blocks give'] = re.compile(
            r'^action_model\.model\.proj_out_[12]\.'
        )
    if head.state != 'embedded' or not include_state:
        extras['the state does not go this way'] = re.compile(r'^action_model\.state_encoder\.')
    return Naming(extras=extras, tied=tied_names(VLM) if tied_head else {})


def _image_resize(run: RunOptions, folder: Path) -> str:
    """As torchvision, unless the run says otherwise: AutoProcessor builds that form of the
    processor by whichever of its names a file has, in transformers 4.57 as in 5.24.
    """
    if run.image_resize not in ('', *RESIZES):
        raise OxygenError(
            f'{folder / FILE}: image_resize is {run.image_resize!r}, allowed: {", ".join(RESIZES)}'
        )
    return run.image_resize or 'torchvision'


def _image_tokens(size: tuple[int, int] | None, image: Mapping[str, Any], run: RunOptions) -> int:
    """Tokens of one image: exact where its size is fixed."""
    processor = getattr(transformers, 'Qwen2VLImageProcessorPil', None)
    if size is None or processor is None:  # what the processing needs and says itself
        return run.max_image_tokens
    made = processor(**image)
    return int(made.get_number_of_image_patches(size[1], size[0]) // made.merge_size**2)


def _fast_tokenizer(folder: Path, head: Head, run: RunOptions) -> Path | None:
    """Folder of the FAST tokenizer that actions are decoded by; None where they are not."""
    if head.conditioned != 'tokens':
        return None
    places = (run.fast_tokenizer,) if run.fast_tokenizer else (folder / 'fast',)
    for place in places:
        if all((place / file).is_file() for file in ('tokenizer.json', 'processor_config.json')):
            return place
    raise OxygenError(
        f'{folder}: no FAST tokenizer in {", ".join(map(str, places))}: copy the files of '
        f'physical-intelligence/fast (tokenizer.json, processor_config.json) to '
        f'{folder / "fast"}, or name their folder under "fast_tokenizer" in {FILE}'
    )

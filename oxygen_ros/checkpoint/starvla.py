"""StarVLA's runs: which head, on which backbone, of which sizes.

Source: starVLA 0ed0aad2, model/framework/VLM4A and model/modules/action_model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers

from oxygen_ros.checkpoint import pi05, starvla_run
from oxygen_ros.checkpoint.files import json_kinds, read_json
from oxygen_ros.checkpoint.info import CheckpointInfo, Layout, Normalization, Survey, noting
from oxygen_ros.checkpoint.options import FILE
from oxygen_ros.checkpoint.run_options import RunOptions, read_run_options
from oxygen_ros.checkpoint.weights import FLOATS, Naming, StoredTensor, read_index
from oxygen_ros.types import OxygenError

FAMILY = 'starvla'
VLM = 'qwen_vl_interface.model.'
_BLOCKS = 'action_model.model.transformer_blocks.'
_EMBED = VLM + 'model.language_model.embed_tokens.weight'
# DiT heads by their type: heads, width of one
_DIT_TYPES = {'DiT-B': (12, 64), 'DiT-L': (32, 48)}


@dataclass(frozen=True)
class Head:
    """What StarVLA's default configuration says of a head, config.yaml being allowed to be short.

    conditioned: what it reads: 'layers' (every layer's hidden state), 'last' (that of the last),
    'queries' (of its own words) or 'tokens' (it is decoded). state: whether the prompt holds the
    robot's state in digits, or the head embeds it, or never sees it. steps: of the flow.
    """

    conditioned: str
    state: str
    horizon: int
    steps: int = 4
    interleaved: bool = True


HEADS = {
    'QwenPI': Head('layers', 'embedded', 16),
    'QwenFM': Head('layers', 'embedded', 16),
    'QwenPI_v3': Head('layers', 'prompt', 16, interleaved=False),
    'QwenGR00T': Head('last', 'embedded', 8),
    'QwenOFT': Head('queries', 'prompt', 9),
    'QwenFast': Head('tokens', 'none', 16),
}
FORMATS = (
    f"StarVLA's runs (config.yaml with framework.name {', '.join(HEADS)}, or "
    f'{starvla_run.PI05[0]}, a pi0.5, or {starvla_run.PI0[0]}, a pi0)'
)


@dataclass(frozen=True, eq=False)
class StarvlaLayout(Layout):
    """What is StarVLA's own.

    head: see Head, as this run has it. name: of the head. vlm, image: the backbone's config.json
    and the values of its image processor. base_vlm: folder of both. attention_heads: of the DiT.
    layers: of the backbone. buckets: the flow time 1.0 in the head's integers. include_state:
    whether the head was trained with the state. prompt: text around {instruction}. image_size:
    (width, height) that images are resized to, None where they are not. image_tokens, text_tokens:
    the most that one camera, and all words together, may take. sizes: stored name -> shape.
    """

    head: Head
    name: str
    vlm: Mapping[str, Any]
    image: Mapping[str, Any]
    base_vlm: Path
    attention_heads: int
    buckets: int
    include_state: bool
    prompt: str
    image_size: tuple[int, int] | None
    image_tokens: int
    text_tokens: int
    fast_tokenizer: Path | None
    max_action_tokens: int
    sizes: Mapping[str, tuple[int, ...]]


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
        norm = starvla_run.normalization(folder, robot_tag)
    with noting(problems, 'tokenizer'):
        base = _base_vlm(folder, config['framework'], run)
    if index is not None and norm is not None and base is not None:
        with json_kinds(folder):
            layout = _layout(folder, config, run, norm, base, files, index)
    return Survey(StarvlaInfo, layout, norm, base, problems)


def _index(files: tuple[Path, ...], folder: Path) -> dict[str, StoredTensor]:
    index = read_index(files, Naming())
    if _EMBED not in index:
        raise OxygenError(
            f'{folder}: not a complete StarVLA checkpoint, tensor {_EMBED} is missing in '
            f'{files[0].name}'
        )
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


_BASE_FILES = ('config.json', 'tokenizer.json', 'preprocessor_config.json')


def _layout(
    folder: Path,
    config: Mapping[str, Any],
    run: RunOptions,
    norm: Normalization,
    base: Path,
    files: tuple[Path, ...],
    index: Mapping[str, StoredTensor],
) -> StarvlaLayout:
    framework, data = config['framework'], (config.get('datasets') or {}).get('vla_data') or {}
    action = framework.get('action_model') or {}
    sizes = {name: stored.shape for name, stored in index.items()}
    head = _head(HEADS[framework['name']], action, folder)
    image = _image_rule(base)
    # QwenFast gives the processor its images as they come.
    resized = None if head.conditioned == 'tokens' else data.get('obs_image_size')
    image_size = (int(resized[0]), int(resized[1])) if resized else None
    image_tokens = _image_tokens(image_size, image, run)
    include_state = _include_state(head, data, run)
    _check(folder, run, norm, action)
    return StarvlaLayout(
        path=folder,
        format='starvla',
        family=FAMILY,
        cameras=run.cameras,
        state_dim=len(norm.state.origin) or int(action.get('state_dim') or _action_dim(action)),
        action_dim=_action_dim(action),
        horizon=head.horizon,
        max_prefix=len(run.cameras) * image_tokens + run.tokenizer_max_length,
        dtype=FLOATS[index[_EMBED].dtype],
        weight_files=files,
        naming=naming(head, include_state),
        head=head,
        name=framework['name'],
        vlm=read_json(base / 'config.json'),
        image=image,
        base_vlm=base,
        attention_heads=_attention_heads(sizes, action, run, folder),
        buckets=int(action.get('num_timestep_buckets', 1000)),
        include_state=include_state,
        prompt=str(data.get('CoT_prompt') or '{instruction}'),
        image_size=image_size,
        image_tokens=image_tokens,
        text_tokens=run.tokenizer_max_length,
        fast_tokenizer=_fast_tokenizer(folder, head, run),
        max_action_tokens=run.max_action_tokens,
        sizes=sizes,
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


def _include_state(head: Head, data: Mapping[str, Any], run: RunOptions) -> bool:
    state = data.get('include_state') if run.include_state is None else run.include_state
    return state not in (None, False, 'False') and head.state != 'none'


def _head(head: Head, action: Mapping[str, Any], folder: Path) -> Head:
    """The head as this run's configuration changes it. Raises OxygenError on what is unknown."""
    dit = action.get('diffusion_model_cfg') or {}
    for key, known in _DIT_KNOWN.items():
        if dit.get(key, known) != known:
            raise OxygenError(
                f'{folder / starvla_run.CONFIG}: diffusion_model_cfg.{key} is {dit[key]!r}, '
                f'supported: {known!r}'
            )
    horizon = action.get('action_horizon')
    if horizon is None and 'future_action_window_size' in action:
        horizon = int(action['future_action_window_size']) + 1
    interleaved = dit.get('interleave_self_attention', head.interleaved)
    if dit.get('use_canonical_forward') is not None:  # an older name of the same switch
        interleaved = dit['use_canonical_forward']
    return replace(
        head,
        horizon=int(head.horizon if horizon is None else horizon),
        steps=int(action.get('num_inference_timesteps') or head.steps),
        interleaved=bool(interleaved),
    )


_DIT_KNOWN: dict[str, Any] = {
    'norm_type': 'ada_norm',
    'positional_embeddings': None,
    'activation_fn': 'gelu-approximate',
    'attention_bias': True,
    'norm_elementwise_affine': False,
}


def naming(head: Head, include_state: bool) -> Naming:
    """Tensors are called as in the run; some that every run holds are not read."""
    extras = {}
    if head.conditioned == 'layers':
        extras['the head gives what its blocks give'] = re.compile(
            r'^action_model\.model\.proj_out_[12]\.'
        )
    if head.state != 'embedded' or not include_state:
        extras['the state does not go this way'] = re.compile(r'^action_model\.state_encoder\.')
    return Naming(extras=extras)


def _attention_heads(
    sizes: Mapping[str, tuple[int, ...]], action: Mapping[str, Any], run: RunOptions, folder: Path
) -> int:
    """Heads of the DiT, which no shape tells; 1 where the head is none."""
    query = sizes.get(_BLOCKS + '0.attn1.to_q.weight')
    if query is None:
        return 1
    if run.attention_heads and query[0] % run.attention_heads == 0:
        return run.attention_heads
    dit = action.get('diffusion_model_cfg') or {}
    heads, width = _DIT_TYPES.get(str(action.get('action_model_type')), (0, 64))
    width = int(dit.get('attention_head_dim') or width)
    heads = int(dit.get('num_attention_heads') or heads or query[0] // width)
    if heads * width != query[0]:
        raise OxygenError(
            f'{folder}: {heads} heads of {width} are not a width of {query[0]}, which the action '
            f'head has; state "attention_heads" in {FILE}'
        )
    return heads


def _image_tokens(size: tuple[int, int] | None, image: Mapping[str, Any], run: RunOptions) -> int:
    """Tokens of one image: exact where its size is fixed."""
    processor = getattr(transformers, 'Qwen2VLImageProcessorPil', None)
    if size is None or processor is None:  # what the processing needs and says itself
        return run.max_image_tokens
    made = processor(**image)
    return int(made.get_number_of_image_patches(size[1], size[0]) // made.merge_size**2)


def _image_rule(base: Path) -> dict[str, Any]:
    """The image processor's own values, without its names."""
    names = ('auto_map', 'processor_class', 'image_processor_type')
    image = read_json(base / 'preprocessor_config.json')
    return {key: value for key, value in image.items() if key not in names}


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

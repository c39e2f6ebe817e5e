"""pi0.5 of LeRobot, openpi or StarVLA: from its checkpoints to its model and processor."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from oxygen_ros.checkpoint import check_tensors, iter_tensors, load_into, tensor_shapes
from oxygen_ros.checkpoint.arch import LM_HEAD
from oxygen_ros.checkpoint.info import Pi05Layout, Survey
from oxygen_ros.checkpoint.inspection import as_info, claims, survey_checkpoint
from oxygen_ros.models.pi05 import Pi05, Pi05Options, model_spec, work_bytes
from oxygen_ros.models.recipe import Family, Footprint, Progress, Recipe
from oxygen_ros.processing.pi05 import Pi05Processor
from oxygen_ros.processing.tokenizer import Tokenizer


def _load(survey: Survey, device: torch.device, dtype: torch.dtype, progress: Progress) -> Family:
    info = as_info(survey)
    _check_weights(info)  # names what is wrong before memory is taken
    processor = Pi05Processor(info)
    model = Pi05(info.arch, _options(info), device, dtype)
    if info.tied_head:
        model.tie_head()
    load_into(model.checkpoint_parameters(), iter_tensors(info), progress, str(info.path))
    notes = {
        'family': info.family,
        'format': info.format,
        'time_rule': info.time_rule,
        'image_resize': info.image_resize,
        'prompt_layout': info.prompt_layout,
        'state_in_prompt': str(info.state_in_prompt),
        'state_normalization': info.normalization.state.mode,
        'action_normalization': info.normalization.action.mode,
        'relative_actions': str(sum(info.relative_actions)),
        'tied_head': str(model.tie_if_equal()),
    }
    return Family(model, processor, notes)


def _options(info: Pi05Layout) -> Pi05Options:
    return Pi05Options(
        max_cameras=len(info.cameras),
        max_prompt_tokens=info.tokenizer_max_length,
        time_rule=info.time_rule,
        causal_prompt=info.prompt_layout == 'causal',
    )


def _footprint(info: Pi05Layout, rows: int, value_bytes: int) -> Footprint:
    options = _options(info)
    tensors = tensor_shapes(info.arch)
    values = sum(math.prod(shape) for shape in tensors.values())
    if info.tied_head:
        values -= math.prod(tensors[LM_HEAD])
    work = work_bytes(info.arch, options, rows, value_bytes)
    return Footprint(model_spec(info.arch, options), values * value_bytes, work)


def _check_weights(info: Pi05Layout) -> int:
    tensors = tensor_shapes(info.arch)
    check_tensors(info, tensors)
    return len(tensors)


def _check_tokenizer(folder: Path, info: Pi05Layout) -> None:
    Tokenizer(folder, info.arch.vocab_size)


PI05 = Recipe(
    formats="LeRobot's, openpi's or StarVLA's pi0.5",
    claims=claims,
    survey=survey_checkpoint,
    check_weights=_check_weights,
    check_tokenizer=_check_tokenizer,
    footprint=_footprint,
    load=_load,
)

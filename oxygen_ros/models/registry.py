"""From a checkpoint's family to its model and processor; the only place that knows them all."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from oxygen_ros.checkpoint import (
    CheckpointInfo,
    Layout,
    Pi05Info,
    Pi05Layout,
    check_tensors,
    iter_tensors,
    load_into,
    tensor_shapes,
)
from oxygen_ros.checkpoint.arch import LM_HEAD
from oxygen_ros.checkpoint.inspection import READERS, Reader
from oxygen_ros.models import starvla, xiaomi_robotics_0
from oxygen_ros.models.family import Family, Footprint, Parts, Progress
from oxygen_ros.models.pi0 import Pi0
from oxygen_ros.models.pi05 import DENOISE_STEPS, Pi05
from oxygen_ros.models.pi05_sizes import Pi05Options, model_spec, work_bytes
from oxygen_ros.processing.pi05 import Pi05Processor
from oxygen_ros.processing.tokenizer import Tokenizer
from oxygen_ros.types import OxygenError, PolicyInfo


def register(family: str, reader: Reader, parts: Parts) -> None:
    """Make a further family known: its checkpoints and its model. Raises OxygenError on a second.

    Layouts that the reader makes bear the family's name.
    """
    if family in FAMILIES:
        raise OxygenError(f'family {family!r} is known already: give yours another name')
    FAMILIES[family] = parts
    READERS.insert(0, reader)


def load(
    info: CheckpointInfo, device: torch.device, dtype: torch.dtype, progress: Progress = None
) -> Family:
    """Read a checkpoint's weights straight to the device. Raises OxygenError.

    progress is called with the fraction that is read.
    """
    return _parts(info).load(info, device, dtype, progress)


def footprint(info: Layout, rows: int, value_bytes: int) -> Footprint:
    """Sizes of a checkpoint's model with so many KV rows; value_bytes of one number."""
    return _parts(info).footprint(info, rows, value_bytes)


def check_tokenizer(folder: Path, info: Layout) -> None:
    """Raise OxygenError if a tokenizer folder does not fit the checkpoint."""
    _parts(info).check_tokenizer(folder, info)


def describe(info: Layout) -> PolicyInfo:
    """What a checkpoint expects and gives, without its weights."""
    return PolicyInfo(
        family=info.family,
        cameras=info.cameras,
        state_dim=info.state_dim,
        action_dim=info.action_dim,
        horizon=info.horizon,
        max_prefix_tokens=info.max_prefix,
        no_overlap=_parts(info).no_overlap(info),
    )


def _load_pi05(
    info: Pi05Info, device: torch.device, dtype: torch.dtype, progress: Progress
) -> Family:
    check_tensors(info, tensor_shapes(info.arch))  # names what is wrong before memory is taken
    processor = Pi05Processor(info)
    kind = Pi0 if info.arch.state_dim_padded else Pi05
    model = kind(info.arch, _pi05_options(info), device, dtype)
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
    return Family(model, processor, info.denoise_steps or DENOISE_STEPS, notes)


def _pi05_options(info: Pi05Layout) -> Pi05Options:
    return Pi05Options(
        max_cameras=len(info.cameras),
        max_prompt_tokens=info.tokenizer_max_length,
        time_rule=info.time_rule,
        causal_prompt=info.prompt_layout == 'causal',
    )


def _pi05_footprint(info: Pi05Layout, rows: int, value_bytes: int) -> Footprint:
    options = _pi05_options(info)
    tensors = tensor_shapes(info.arch)
    values = sum(math.prod(shape) for shape in tensors.values())
    if info.tied_head:
        values -= math.prod(tensors[LM_HEAD])
    work = work_bytes(info.arch, options, rows, value_bytes)
    return Footprint(model_spec(info.arch, options), tensors, values * value_bytes, work)


def _check_pi05_tokenizer(folder: Path, info: Pi05Layout) -> None:
    Tokenizer(folder, info.arch.vocab_size)


_PI05 = Parts(_load_pi05, _pi05_footprint, _check_pi05_tokenizer)
FAMILIES = {
    'pi0': _PI05,
    'pi05': _PI05,
    'starvla': starvla.PARTS,
    'xiaomi_robotics_0': xiaomi_robotics_0.PARTS,
}


def _parts(info: Layout) -> Parts:
    if info.family not in FAMILIES:
        raise OxygenError(
            f'{info.path} is of family {info.family!r}: supported are {", ".join(FAMILIES)}'
        )
    return FAMILIES[info.family]

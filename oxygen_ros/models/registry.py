"""From a checkpoint's family to its model and processor; the only place that knows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from oxygen_ros.checkpoint import CheckpointInfo, iter_tensors, load_into
from oxygen_ros.models.base import VLAModel
from oxygen_ros.models.pi05 import Pi05, Pi05Options
from oxygen_ros.processing.pi05 import Pi05Processor
from oxygen_ros.types import OxygenError, PolicyInfo

Progress = Callable[[float], None] | None


@dataclass(frozen=True)
class Family:
    """A loaded model and what stands around it. notes: options of this family as they are."""

    model: VLAModel
    processor: Any
    notes: Mapping[str, str] = field(default_factory=dict)


def load(
    info: CheckpointInfo, device: torch.device, dtype: torch.dtype, progress: Progress = None
) -> Family:
    """Read a checkpoint's weights straight to the device. Raises OxygenError.

    progress is called with the fraction that is read.
    """
    if info.family not in _LOADERS:
        raise OxygenError(
            f'{info.path} is of family {info.family!r}: supported are {", ".join(_LOADERS)}'
        )
    return _LOADERS[info.family](info, device, dtype, progress)


def describe(info: CheckpointInfo) -> PolicyInfo:
    """What a checkpoint expects and gives, without its weights."""
    return PolicyInfo(
        family=info.family,
        cameras=info.cameras,
        state_dim=info.state_dim,
        action_dim=info.action_dim,
        horizon=info.arch.horizon,
        max_prefix_tokens=_max_prefix(info),
    )


def _max_prefix(info: CheckpointInfo) -> int:
    return len(info.cameras) * info.arch.tokens_per_camera + info.tokenizer_max_length


def _load_pi05(
    info: CheckpointInfo, device: torch.device, dtype: torch.dtype, progress: Progress
) -> Family:
    options = Pi05Options(
        max_cameras=len(info.cameras),
        max_prompt_tokens=info.tokenizer_max_length,
        time_rule=info.time_rule,
        causal_prompt=info.prompt_layout == 'causal',
    )
    processor = Pi05Processor(info)
    model = Pi05(info.arch, options, device, dtype)
    if info.tied_head:
        model.tie_head()
    load_into(model.checkpoint_parameters(), iter_tensors(info), progress, str(info.path))
    notes = {
        'family': info.family,
        'format': info.format,
        'time_rule': info.time_rule,
        'image_resize': info.image_resize,
        'prompt_layout': info.prompt_layout,
        'tied_head': str(model.tie_if_equal()),
    }
    return Family(model, processor, notes)


_LOADERS = {'pi05': _load_pi05}

"""What a model family brings: how its checkpoints are recognised, measured and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from oxygen_ros.checkpoint.info import Survey
from oxygen_ros.models.base import ModelSpec, VLAModel

Progress = Callable[[float], None] | None


@dataclass(frozen=True)
class Family:
    """A loaded model and what stands around it. notes: options of this family as they are."""

    model: VLAModel
    processor: Any
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Footprint:
    """What a checkpoint will take, known before it is loaded.

    work_bytes: about what a forward needs beside weights and KV.
    """

    spec: ModelSpec
    weight_bytes: int
    work_bytes: int


@dataclass(frozen=True)
class Recipe:
    """One family, as functions; those that meet a fault raise OxygenError.

    formats: what it reads, for messages. claims: whether a folder is one of its checkpoints, by
    what it holds, right or wrong in detail. survey: reads what can be read without weights, for a
    robot tag ('' where there is but one). check_weights: compares the headers of the weight files
    with the network, returns the number of tensors. check_tokenizer: of a folder. footprint: for
    so many KV rows and bytes of one number. load: of a survey without problems.
    """

    formats: str
    claims: Callable[[Path], bool]
    survey: Callable[[Path, str], Survey]
    check_weights: Callable[[Any], int]
    check_tokenizer: Callable[[Path, Any], None]
    footprint: Callable[[Any, int, int], Footprint]
    load: Callable[[Survey, torch.device, torch.dtype, Progress], Family]

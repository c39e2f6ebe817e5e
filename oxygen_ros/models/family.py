"""What a model family brings along: its network, what stands around it, and how large it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from oxygen_ros.models.base import ModelSpec, VLAModel

Progress = Callable[[float], None] | None


@dataclass(frozen=True)
class Family:
    """A loaded model and what stands around it.

    denoise_steps: Euler steps its makers take. notes: options of this family as they are.
    """

    model: VLAModel
    processor: Any
    denoise_steps: int
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Footprint:
    """What a checkpoint will take, known before it is loaded. tensors: name -> shape.

    work_bytes: about what a forward needs beside weights and KV.
    """

    spec: ModelSpec
    tensors: Mapping[str, tuple[int, ...]]
    weight_bytes: int
    work_bytes: int


@dataclass(frozen=True)
class Parts:
    """The functions of one family; the registry knows them by its name.

    load: (info, device, dtype, progress). footprint: (layout, KV rows, bytes of one number).
    check_tokenizer: raises OxygenError if a tokenizer folder does not fit.
    no_overlap: why act() takes no guide and what to do instead, or ''.
    """

    load: Callable[[Any, torch.device, torch.dtype, Progress], Family]
    footprint: Callable[[Any, int, int], Footprint]
    check_tokenizer: Callable[[Path, Any], None]
    no_overlap: Callable[[Any], str] = lambda layout: ''

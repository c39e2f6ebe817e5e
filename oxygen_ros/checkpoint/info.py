"""What is known of a checkpoint before its weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oxygen_ros.checkpoint.arch import Pi05Arch
from oxygen_ros.checkpoint.quantiles import Quantiles

TIME_RULES = ('float32_of_step', 'accumulate_float32')
IMAGE_RESIZES = ('float_bilinear', 'pil_bilinear')
PROMPT_LAYOUTS = ('bidirectional', 'causal')
EPS_RULES = {'replace_zero_width': 1e-8, 'add_to_width': 1e-6}  # rule -> its maker's eps


@dataclass(frozen=True, eq=False)
class Normalization:
    """Quantiles of the training data, one value per joint, in robot units.

    Arrays are float32 from LeRobot and float64 from openpi: each maker computes in its own.
    eps_rule: a width q99 - q01 of zero becomes eps ('replace_zero_width', LeRobot), or eps is
    added to every width ('add_to_width', openpi).
    """

    state_q01: np.ndarray
    state_q99: np.ndarray
    action_q01: np.ndarray
    action_q99: np.ndarray
    eps_rule: str
    eps: float


@dataclass(frozen=True, eq=False)
class Described:
    """What one format's own files say, before tensors and oxygen.json are looked at.

    sizes: fields of Pi05Arch the files state. state_dim, action_dim, image_resolution: None where
    the format leaves them to statistics and tensors. tokenizer_dirs: where to look, best first.
    """

    format: str
    cameras: tuple[str, ...]
    state: Quantiles
    action: Quantiles
    state_dim: int | None
    action_dim: int | None
    sizes: Mapping[str, float]
    image_resolution: tuple[int, int] | None
    tokenizer_dirs: tuple[Path, ...]
    tokenizer_max_length: int
    time_rule: str
    image_resize: str
    eps_rule: str
    eps: float


@dataclass(frozen=True, eq=False)
class CheckpointInfo:
    """A checkpoint folder as inspect_checkpoint found it.

    cameras: slot names in model order. state_dim, action_dim: of the robot, not padded.
    image_resolution: (height, width) in pixels. dtype: of the stored language model.
    tied_head: only one of LM head and embedding is stored, and it serves as both.
    time_rule, image_resize, normalization.eps_rule: as the checkpoint's maker computes.
    """

    path: Path
    format: str
    family: str
    arch: Pi05Arch
    cameras: tuple[str, ...]
    state_dim: int
    action_dim: int
    normalization: Normalization
    tokenizer_dir: Path
    tokenizer_max_length: int
    image_resolution: tuple[int, int]
    dtype: str
    tied_head: bool
    time_rule: str
    image_resize: str
    prompt_layout: str
    weight_files: tuple[Path, ...]

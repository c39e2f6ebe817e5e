"""What is known of a checkpoint before its weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oxygen_ros.checkpoint.arch import Pi05Arch
from oxygen_ros.checkpoint.stats import RANGES

TIME_RULES = ('float32_of_step', 'accumulate_float32')
IMAGE_RESIZES = ('float_bilinear', 'pil_bilinear')
PROMPT_LAYOUTS = ('bidirectional', 'causal')
EPS_RULES = {'replace_zero_width': 1e-8, 'add_to_width': 1e-6}  # rule -> its maker's eps


@dataclass(frozen=True, eq=False)
class Scale:
    """Between one vector's robot units and the network's: normalised = (x - origin) / span_in.

    Where is_range holds, that is stretched to 2 * normalised - 1. Arrays are [D], one value per
    joint, float32 from LeRobot and float64 from openpi: each maker computes in its own. span_out
    leads back into robot units; makers guard the two ways differently against a span of zero.
    """

    mode: str
    origin: np.ndarray
    span_in: np.ndarray
    span_out: np.ndarray

    @property
    def is_range(self) -> bool:
        """True where two limits are mapped to -1 and 1."""
        return self.mode in RANGES


@dataclass(frozen=True, eq=False)
class Normalization:
    """Scales of state and actions. eps_rule: how a range of zero width is kept from dividing by 0.

    'replace_zero_width' (LeRobot): it becomes eps. 'add_to_width' (openpi): eps is added to every
    width. Both add eps to a standard deviation they divide by; only the latter when multiplying.
    """

    state: Scale
    action: Scale
    eps_rule: str


@dataclass(frozen=True, eq=False)
class Described:
    """What one format's own files say, before tensors and oxygen.json are looked at.

    sizes: fields of Pi05Arch the files state. state_dim, action_dim, image_resolution: None where
    the format leaves them to statistics and tensors. relative_actions: see Layout.
    tokenizer_dirs: where to look, best first.
    """

    format: str
    cameras: tuple[str, ...]
    state_dim: int | None
    action_dim: int | None
    relative_actions: tuple[bool, ...]
    sizes: Mapping[str, float]
    image_resolution: tuple[int, int] | None
    tokenizer_dirs: tuple[Path, ...]
    tokenizer_max_length: int
    time_rule: str
    image_resize: str
    eps_rule: str


@dataclass(frozen=True, eq=False)
class Layout:
    """What a checkpoint is, by its descriptions and the headers of its weights.

    cameras: slot names in model order. state_dim, action_dim: of the robot, not padded.
    image_resolution: (height, width) in pixels. dtype: of the stored language model.
    tied_head: only one of LM head and embedding is stored, and it serves as both.
    time_rule, image_resize: as the checkpoint's maker computes. state_in_prompt: the bidirectional
    prompt holds the state in digits; the causal one never does. relative_actions: for each action
    whether it counts from the state of its own frame; () where all are absolute.
    """

    path: Path
    format: str
    family: str
    arch: Pi05Arch
    cameras: tuple[str, ...]
    state_dim: int
    action_dim: int
    tokenizer_max_length: int
    image_resolution: tuple[int, int]
    dtype: str
    tied_head: bool
    time_rule: str
    image_resize: str
    prompt_layout: str
    state_in_prompt: bool
    relative_actions: tuple[bool, ...]
    weight_files: tuple[Path, ...]


@dataclass(frozen=True, eq=False)
class CheckpointInfo(Layout):
    """A checkpoint folder as inspect_checkpoint found it."""

    normalization: Normalization
    tokenizer_dir: Path


@dataclass(frozen=True, eq=False)
class Survey:
    """A checkpoint folder part by part, so that one fault does not hide another.

    problems: 'weights', 'statistics' or 'tokenizer' -> what is wrong with it; the part is then
    None. layout is None where weights or statistics are needed for it.
    """

    layout: Layout | None
    normalization: Normalization | None
    tokenizer_dir: Path | None
    problems: Mapping[str, str]

"""What is known of a checkpoint before its weights are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.checkpoint.arch import Pi05Arch
from oxygen_ros.checkpoint.stats import NO_SPAN, RANGES
from oxygen_ros.checkpoint.weights import Naming
from oxygen_ros.types import OxygenError

TIME_RULES = ('float32_of_step', 'accumulate_float32', 'accumulate_all_float32')
IMAGE_RESIZES = ('float_bilinear', 'pil_bilinear')
PROMPT_LAYOUTS = ('bidirectional', 'causal')
EPS_RULES = {'replace_zero_width': 1e-8, 'add_to_width': 1e-6}  # rule -> its maker's eps


@dataclass(frozen=True, eq=False)
class Scale:
    """Between one vector's robot units and the network's: normalised = (x - origin) / span_in.

    Where is_range holds, that is stretched to 2 * normalised - 1. Arrays are [D], one value per
    joint, float32 from LeRobot and float64 from openpi: each maker computes in its own. span_out
    leads back into robot units; makers guard the two ways differently against a span of zero.
    mask: bool [D], False where a value is not scaled; None is nowhere. limit: normalised values
    are clipped to +-limit.
    """

    mode: str
    origin: np.ndarray
    span_in: np.ndarray
    span_out: np.ndarray
    mask: np.ndarray | None = None
    limit: float | None = None

    @property
    def is_range(self) -> bool:
        """True where two limits are mapped to -1 and 1."""
        return self.mode in RANGES


@dataclass(frozen=True, eq=False)
class Normalization:
    """Scales of state and actions. eps_rule: how a range of zero width is kept from dividing by 0.

    'replace_zero_width' (LeRobot): it becomes eps. 'add_to_width' (openpi): eps is added to every
    width. Both add eps to a standard deviation they divide by; only the latter when multiplying.
    'keep_value' (StarVLA): such a value is not scaled. gripper: the action that becomes 0 or 1,
    whichever is nearer to its normalised value, before it is scaled; -1 for none.
    """

    state: Scale
    action: Scale
    eps_rule: str
    gripper: int = -1

    def summary(self) -> str:
        """What is normalised by what, for a pre-flight."""
        return ', '.join(
            f'{len(scale.origin)} {what} by {scale.mode}' for what, scale in self._scales()
        )

    def never_moved(self) -> str:
        """Which dimensions had no span in training and what that means, or ''."""
        still = [
            (what, np.flatnonzero(np.minimum(s.span_in, s.span_out) < NO_SPAN).tolist())
            for what, s in self._scales()
        ]
        named = [f'{what} {dims}' for what, dims in still if dims]
        if not named:
            return ''
        return (
            f'{" and ".join(named)} (counted from 0) never moved in training: {self.eps_rule} '
            'keeps them from dividing by 0, and any other value is out of range'
        )

    def _scales(self) -> tuple[tuple[str, Scale], ...]:
        return ('state', self.state), ('actions', self.action)


@dataclass(frozen=True, eq=False)
class Described:
    """What one format's own files say, before tensors and oxygen.json are looked at.

    sizes: fields of Pi05Arch the files state. state_dim, action_dim, image_resolution: None where
    the format leaves them to statistics and tensors. relative_actions: see Layout.
    tokenizer_dirs: where to look, best first. embeds_state: a pi0. old_prompt: why it may be that
    the prompt held a padded state in training, or ''. The others: see Pi05Layout.
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
    state_in_prompt: bool = True
    prompt_state_dim: int = 0
    prompt_state_pad: float = 0.0
    embeds_state: bool = False
    denoise_steps: int = 0
    old_prompt: str = ''


@dataclass(frozen=True, eq=False)
class Layout:
    """What a checkpoint of any family is, by its descriptions and the headers of its weights.

    family: name of its model in the registry. cameras: slot names in model order. state_dim,
    action_dim: of the robot, not padded. horizon: H. max_prefix: the longest S. dtype: of the
    stored language model. naming: how stored tensors are called in the model.
    """

    path: Path
    format: str
    family: str
    cameras: tuple[str, ...]
    state_dim: int
    action_dim: int
    horizon: int
    max_prefix: int
    dtype: str
    weight_files: tuple[Path, ...]
    naming: Naming

    def __post_init__(self) -> None:
        twice = sorted({name for name in self.cameras if self.cameras.count(name) > 1})
        if twice:
            raise OxygenError(
                f'{self.path}: two cameras are called {", ".join(twice)}: a name of its own for '
                'each is needed'
            )


@dataclass(frozen=True, eq=False)
class CheckpointInfo(Layout):
    """A checkpoint folder as inspect_checkpoint found it. normalization: of its family's kind."""

    normalization: Any
    tokenizer_dir: Path


@dataclass(frozen=True, eq=False)
class Pi05Layout(Layout):
    """What is pi0.5's own, and pi0's.

    image_resolution: (height, width) in pixels. tied_head: only one of LM head and embedding is
    stored, and it serves as both. time_rule, image_resize: as the checkpoint's maker computes.
    state_in_prompt: the bidirectional prompt holds the state in digits; the causal one never does.
    prompt_state_dim: so many values the prompt holds at least, those the robot lacks being
    prompt_state_pad. relative_actions: for each action whether it counts from the state of its own
    frame; () where all are absolute. denoise_steps: that its files state, 0 for none.
    """

    arch: Pi05Arch
    tokenizer_max_length: int
    image_resolution: tuple[int, int]
    tied_head: bool
    time_rule: str
    image_resize: str
    prompt_layout: str
    state_in_prompt: bool
    prompt_state_dim: int
    prompt_state_pad: float
    relative_actions: tuple[bool, ...]
    denoise_steps: int


@dataclass(frozen=True, eq=False)
class Pi05Info(Pi05Layout, CheckpointInfo):
    """A checkpoint folder of pi0.5 or pi0."""

    normalization: Normalization


@dataclass(frozen=True, eq=False)
class Survey:
    """A checkpoint folder part by part, so that one fault does not hide another.

    problems: 'weights', 'statistics' or 'tokenizer' -> what is wrong with it; the part is then
    None. notes: part -> what is supposed of it, which nothing would show if it were wrong. layout
    is None where weights or statistics are needed for it. kind: what a folder without problems
    is. normalization: has summary() and never_moved(), see Normalization.
    """

    kind: type[CheckpointInfo]
    layout: Layout | None
    normalization: Any
    tokenizer_dir: Path | None
    problems: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def complete(self) -> CheckpointInfo:
        """The whole description. Raises OxygenError that names every problem."""
        if self.problems:
            raise OxygenError('; '.join(self.problems.values()))
        assert self.layout and self.normalization and self.tokenizer_dir, 'a part without problem'
        return self.kind(
            **vars(self.layout),
            normalization=self.normalization,
            tokenizer_dir=self.tokenizer_dir,
        )


@contextmanager
def noting(problems: dict[str, str], part: str) -> Iterator[None]:
    """Note an OxygenError as this part's problem."""
    try:
        yield
    except OxygenError as error:
        problems[part] = str(error)

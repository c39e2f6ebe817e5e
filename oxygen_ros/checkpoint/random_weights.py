"""Random values for every tensor of a pi0.5, scaled so that a forward pass stays healthy."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oxygen_ros.checkpoint.arch import EMBED, LANGUAGE, LM_HEAD

_HEAD_GAIN = 4.0  # spread of the logits: a clear best word at temperature 0, variety at 1
_UNSPOKEN = 0.05  # size of the rows of tokens that shall never be said
_ENDING = 1.6  # size of <eos>'s row: answers of a few dozen tokens
_DENOISE = 2.0  # how strongly the action head pulls its noise towards zero
# Without a bias the expert's first norm would blow up actions that are nearly zero, and ten
# steps would make a rounding error a thousand times larger; trained networks do not do that.
_ACTION_BIAS = 0.5
_PICKS = re.compile(r'language_model.*self_attn\.[qk]_proj\.weight$')
# Standard deviation of a product's output per unit of input, first match wins.
_GAINS = (
    (re.compile(r'language_model.*(o_proj|down_proj)\.weight$'), 1.0),
    (re.compile(r'(o_proj|out_proj|down_proj|fc2)\.weight$'), 0.5),
    (re.compile(r'\.dense\.weight$'), 0.2),  # how far the flow time moves the expert's norms
    (re.compile(r''), 1.0),
)


@dataclass(frozen=True)
class RandomWeights:
    """Values by name; each tensor depends on its name and the seed alone, not on the order.

    spoken: ids of the tokens that answers are made of; eos_id ends one now and then, the more so
    the larger its row (ending). attention:
    how sharply the language model's attention picks. Two layers need 4.0, or answers turn in
    circles; with it 18 layers would be chaotic, bfloat16 and float32 having nothing in common.
    """

    seed: int
    dtype: torch.dtype
    spoken: Sequence[int]
    eos_id: int
    attention: float = 1.5
    ending: float = _ENDING

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of a canonical name."""
        if name in (EMBED, LM_HEAD):
            return self._words(shape)
        if name == LANGUAGE + 'norm.weight':
            # 1 + w has random signs, or a tied head would mostly say the last word again.
            signs = self._normal(name, shape, 1.0).sign()
            return signs * _HEAD_GAIN - 1.0
        if name == 'action_out_proj.weight':
            return self._action_out(name, shape)
        if name.endswith('.dense.bias'):
            scale_shift = torch.zeros(shape[0] // 3 * 2, dtype=self.dtype)
            return torch.cat([scale_shift, torch.ones(shape[0] // 3, dtype=self.dtype)])  # gate
        if name == 'action_in_proj.bias':
            return self._normal(name, shape, _ACTION_BIAS)
        if len(shape) == 1:
            return self._vector(name, shape)
        gain = next(gain for pattern, gain in _GAINS if pattern.search(name))
        if _PICKS.search(name):
            gain = self.attention
        return self._normal(name, shape, gain / math.sqrt(math.prod(shape[1:])))

    def _normal(self, name: str, shape: tuple[int, ...], spread: float) -> torch.Tensor:
        # The CPU generator takes 32 bits of a seed.
        generator = torch.Generator().manual_seed(zlib.crc32(f'{self.seed} {name}'.encode()))
        return torch.empty(shape, dtype=self.dtype).normal_(0.0, spread, generator=generator)

    def _vector(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Biases and Gemma's norms (1 + w) start at zero, SigLIP's norms at one."""
        value = 1.0 if re.search(r'layer_?norm\d?\.weight$', name) and 'vision' in name else 0.0
        return torch.full(shape, value, dtype=self.dtype)

    def _words(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Embedding and head alike [V, W]; rows of unspoken tokens are small."""
        rows = self._normal(EMBED, shape, 1.0 / math.sqrt(shape[1]))
        size = torch.full((shape[0], 1), _UNSPOKEN, dtype=self.dtype)
        size[list(self.spoken)] = 1.0
        size[self.eos_id] = self.ending
        return rows.mul_(size)

    def _action_out(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """[A, W]: partly the way back of action_in_proj, so that noise is taken away."""
        back = self._normal('action_in_proj.weight', shape[::-1], 1.0 / math.sqrt(shape[1])).T
        return self._normal(name, shape, 1.0 / math.sqrt(shape[1])) + back * _DENOISE

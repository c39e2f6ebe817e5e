"""FAST: tokens of a language model's answer -> an action chunk.

Source: physical-intelligence/fast. A chunk is a discrete cosine transform along its steps, scaled
and rounded; each coefficient is a character, and the text of all is byte-pair encoded.
"""

from __future__ import annotations

import math

import numpy as np
from transformers import PreTrainedTokenizerFast

from oxygen_ros.checkpoint.files import json_kinds, read_json
from oxygen_ros.checkpoint.starvla import StarvlaLayout
from oxygen_ros.processing.qwen import QwenTokenizer
from oxygen_ros.types import OxygenError

_TOKEN = '<robot_action_'  # of the backbone's vocabulary, with FAST's own number behind it


class FastActions:
    """Reads one run's answers."""

    def __init__(self, layout: StarvlaLayout, words: QwenTokenizer) -> None:
        """words: the backbone's. Raises OxygenError if one of them lacks what the other needs."""
        folder = layout.fast_tokenizer
        assert folder is not None, 'a run whose actions are decoded has a FAST tokenizer'
        self._shape = (layout.horizon, layout.action_dim)
        self._numbers = words.numbered(_TOKEN)
        if not self._numbers:
            raise OxygenError(
                f'{layout.base_vlm}: the tokenizer has no {_TOKEN}0>: {layout.name} needs the '
                'base model with action tokens that it was trained on'
            )
        values = read_json(folder / 'processor_config.json')
        with json_kinds(folder):
            self._scale, self._least = float(values['scale']), int(values['min_token'])
        try:
            self._pairs = PreTrainedTokenizerFast(
                tokenizer_file=str(folder / 'tokenizer.json'), clean_up_tokenization_spaces=False
            )
        except Exception as error:  # the library raises bare Exception for bad files
            raise OxygenError(f'{folder}: FAST tokenizer cannot be loaded ({error})') from error

    def __call__(self, tokens: list[int]) -> np.ndarray:
        """An answer, other words left out -> float32 [H, A]. Raises ValueError if it is none."""
        own = [self._numbers[token] for token in tokens if token in self._numbers]
        text = self._pairs.decode(own)
        steps, width = self._shape
        if len(text) != steps * width:
            raise ValueError(
                f'the answer of {len(tokens)} tokens holds {len(own)} of actions, which are '
                f'{len(text)} coefficients: {steps} steps of {width} are needed'
            )
        coefficients = np.array([ord(c) for c in text], np.float64) + self._least
        chunk = cosines(steps).T @ (coefficients.reshape(self._shape) / self._scale)
        return chunk.astype(np.float32)


def cosines(steps: int) -> np.ndarray:
    """The orthonormal discrete cosine transform, float64 [steps, steps]; its way back is .T."""
    order, step = np.arange(steps)[:, None], np.arange(steps)[None]
    matrix = np.cos(math.pi / steps * (step + 0.5) * order) * math.sqrt(2 / steps)
    matrix[0] /= math.sqrt(2)
    return matrix

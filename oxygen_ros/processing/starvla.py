"""Everything around StarVLA's Qwen heads: an Observation in, tensors out, and actions back.

Source: starVLA QWen3.py and QWen2_5.py (chat), share_tools.py (state), QwenOFT.py (its words).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from oxygen_ros.checkpoint.qwen import text_config
from oxygen_ros.checkpoint.starvla import StarvlaInfo
from oxygen_ros.processing import normalization
from oxygen_ros.processing.images import checked_image, present_cameras
from oxygen_ros.processing.prompt import shortened, state_bins
from oxygen_ros.processing.qwen import ANSWER, ByteDetokenizer, QwenTokenizer, spread
from oxygen_ros.processing.qwen_images import Patches, QwenImages
from oxygen_ros.types import Observation, OxygenError

QUERY = '🔍'  # where QwenOFT's head reads; one token


@dataclass(frozen=True)
class StarvlaInputs:
    """One frame as the network takes it; made by StarvlaProcessor.

    token_ids: int64 [S], one placeholder per image token. suffix_ids: int64 [n] of QwenOFT's own
    words behind the prefix, n = 0 for the others. pixel_values, grid: see Patches. state: float32
    [1, D] where the head embeds it, else None. truncated: the instruction was shortened to fit.
    """

    token_ids: torch.Tensor
    suffix_ids: torch.Tensor
    pixel_values: torch.Tensor
    grid: torch.Tensor
    state: torch.Tensor | None
    truncated: bool


class StarvlaProcessor:
    """Processing of one run and robot, by its makers' rules."""

    def __init__(self, info: StarvlaInfo) -> None:
        """Raises OxygenError if tokenizer or image processor cannot be made."""
        self._info = info
        self.tokenizer = QwenTokenizer(info.base_vlm, vocab_size(info.vlm))
        self.tokenizer.chat([''])  # whether there is a format
        self._images = QwenImages(info.image, info.base_vlm, info.image_resize)
        self._reads_queries = info.head.conditioned == 'queries'
        suffix = query_words(info.horizon) if self._reads_queries else ''
        self._suffix = torch.tensor(self.tokenizer.encode(suffix), dtype=torch.int64)

    def frame(self, observation: Observation) -> StarvlaInputs:
        """Tensors of one frame. Raises OxygenError that lists what is allowed."""
        present = present_cameras(observation, self._info.cameras)
        patches = self._patches(observation, present)
        state = self._state(observation.state)
        ids, truncated = self._prompt(observation.instruction, state, patches.tokens)
        embedded = self._info.include_state and self._info.head.state == 'embedded'
        return StarvlaInputs(
            torch.tensor(ids, dtype=torch.int64),
            self._suffix,
            patches.values,
            patches.grid,
            torch.from_numpy(state.astype(np.float32))[None] if embedded else None,
            truncated,
        )

    def prompt_tokens(self, text: str) -> list[int]:
        """Ids of a language request's own words, which follow the prefix. Raises OxygenError.

        They are a turn of the user, whom the model is to answer; without words it goes on where
        the prefix ends. QwenOFT's prefix ends within the user's turn, which is ended here.
        """
        if not self._reads_queries:
            return self.tokenizer.turn(text)
        gap = '\n' if text and not text[0].isspace() else ''
        return self.tokenizer.encode(gap + self.tokenizer.checked(text, 'prompt') + ANSWER)

    def detokenizer(self) -> ByteDetokenizer:
        """A fresh stream that turns one answer's ids into text."""
        return self.tokenizer.detokenizer()

    def robot_actions(self, normalised: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Network's actions [H, A] -> float32 [H, A] in robot units."""
        return normalization.robot_actions(normalised, self._info.normalization)

    def network_actions(self, actions: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Robot units [n, A] -> float32 [n, A] as the network has them."""
        return normalization.network_actions(actions, self._info.normalization)

    def _patches(self, observation: Observation, present: list[str]) -> Patches:
        """Images are squeezed to the run's size, whatever their shape."""
        size, limit = self._info.image_size, self._info.image_tokens
        images = [checked_image(observation.images[slot], slot) for slot in present]
        if size is not None:
            from PIL import Image

            images = [np.asarray(Image.fromarray(image).resize(size)) for image in images]
        patches = self._images(images)
        for slot, tokens in zip(present, patches.tokens, strict=True):
            if tokens > limit:
                raise OxygenError(
                    f'the image of {slot} takes {tokens} tokens, {limit} are reserved for a '
                    f'camera: send smaller images, or set max_image_tokens to {tokens} in '
                    'oxygen.json'
                )
        return patches

    def _state(self, state: np.ndarray) -> np.ndarray:
        """The state as the network has it, checked even where it does not see it."""
        values = np.asarray(state, np.float32)
        if values.shape != (self._info.state_dim,):
            raise OxygenError(
                f'state has shape {list(values.shape)}, the checkpoint expects '
                f'[{self._info.state_dim}]; change the joints in the contract'
            )
        if not self._info.include_state:
            return values
        if not np.isfinite(values).all():
            wrong = np.flatnonzero(~np.isfinite(values)).tolist()
            raise OxygenError(f'state is not a finite number at index {wrong}')
        return normalization.normalize_state(values, self._info.normalization)

    def _prompt(
        self, instruction: str, state: np.ndarray, tokens: list[int]
    ) -> tuple[list[int], bool]:
        """Ids of the common prefix, and whether the task was shortened."""
        if not instruction.strip():
            raise OxygenError('the instruction is empty: say what the robot shall do')
        self.tokenizer.checked(instruction, 'instruction')
        said = ''
        if self._info.include_state and self._info.head.state == 'prompt':
            said = f' [STATE] {" ".join(map(str, state_bins(state)))} [ACTION]'

        def ids_of(length: int) -> list[int]:
            text = self._chat(instruction[:length] + said, len(tokens))
            return self.tokenizer.encode(spread(text, tokens))

        limit = self._info.text_tokens + sum(tokens)
        return shortened(ids_of, len(instruction), limit, self.tokenizer.longest)

    def _chat(self, task: str, images: int) -> str:
        """The prefix in the backbone's own chat format, one placeholder per image."""
        own = query_words(self._info.horizon) if self._reads_queries else ''
        words = self._info.prompt.replace('{instruction}', task + own)
        text = self.tokenizer.chat([*([{'type': 'image'}] * images), words])
        return text[: text.rindex(own)] if own else text


def vocab_size(config: Mapping[str, Any]) -> int:
    """Rows of the embedding, by a backbone's config.json, in its newer or its older form."""
    return int(text_config(config)['vocab_size'])


def query_words(horizon: int) -> str:
    """What QwenOFT appends to the task, up to the last place that its head reads."""
    return f' Please predict the next {horizon} robot actions: <action>{QUERY * horizon}'

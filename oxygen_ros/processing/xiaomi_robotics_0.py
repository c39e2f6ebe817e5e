"""Everything around Xiaomi-Robotics-0's weights: an Observation in, tensors out, and back.

Source: its deploy/server.py (prompt) and processing_mibot (images, statistics).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from oxygen_ros.checkpoint.xiaomi_robotics_0 import XiaomiInfo
from oxygen_ros.processing.images import checked_image, present_cameras
from oxygen_ros.processing.prompt import shortened
from oxygen_ros.processing.qwen import VIEW, ByteDetokenizer, QwenTokenizer, spread
from oxygen_ros.processing.qwen_images import Patches, QwenImages
from oxygen_ros.types import Observation, OxygenError

# What the action branch alone appends to the prompt, which ends in the assistant's turn.
ACTION_SUFFIX = '<cot></cot><|im_end|>\n'


@dataclass(frozen=True)
class XiaomiInputs:
    """One frame as the network takes it; made by XiaomiProcessor.

    token_ids: int64 [S], one placeholder per image token. suffix_ids: int64 [n], of ACTION_SUFFIX.
    pixel_values, grid: of the cameras that are there, see Patches. state: float32 [1, width],
    zero padded. truncated: the instruction was shortened to fit.
    """

    token_ids: torch.Tensor
    suffix_ids: torch.Tensor
    pixel_values: torch.Tensor
    grid: torch.Tensor
    state: torch.Tensor
    truncated: bool


class XiaomiProcessor:
    """Processing of one checkpoint and robot, by its makers' rules."""

    def __init__(self, info: XiaomiInfo) -> None:
        """Raises OxygenError if tokenizer or image processor cannot be made."""
        self._info = info
        self.tokenizer = QwenTokenizer(
            info.tokenizer_dir, int(info.vlm['text_config']['vocab_size'])
        )
        self._images = QwenImages(info.image, info.path, info.image_resize)
        self._suffix = torch.tensor(self.tokenizer.encode(ACTION_SUFFIX), dtype=torch.int64)

    def frame(self, observation: Observation) -> XiaomiInputs:
        """Tensors of one frame. Raises OxygenError that lists what is allowed."""
        present = present_cameras(observation, self._info.cameras)
        patches = self._patches(observation, present)
        views = [self._info.views[self._info.cameras.index(slot)] for slot in present]
        ids, truncated = self._prompt(observation.instruction, views, patches.tokens)
        return XiaomiInputs(
            torch.tensor(ids, dtype=torch.int64),
            self._suffix,
            patches.values,
            patches.grid,
            torch.from_numpy(self._state(observation.state))[None],
            truncated,
        )

    def prompt_tokens(self, text: str) -> list[int]:
        """Ids of a language request's own words, which follow the prefix. Raises OxygenError.

        They are a turn of the user; without words the model goes on where the prefix ends.
        """
        return self.tokenizer.turn(text)

    def detokenizer(self) -> ByteDetokenizer:
        """A fresh stream that turns one answer's ids into text."""
        return self.tokenizer.detokenizer()

    def robot_actions(self, normalised: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Network's actions [H, width] -> float32 [H, A] in robot units."""
        scale = self._info.normalization
        return (normalised * scale.std + scale.mean)[:, : self._info.action_dim]

    def network_actions(self, actions: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Robot units [n, A] of the first n steps -> float32 [n, A] as the network has them."""
        scale, (rows, width) = self._info.normalization, actions.shape
        mean, std = scale.mean[:rows, :width], scale.std[:rows, :width]
        mask = scale.mask[:rows, :width]
        return np.where(mask, (actions - mean) / np.where(mask, std, 1), 0).astype(np.float32)

    def _patches(self, observation: Observation, present: list[str]) -> Patches:
        images = [checked_image(observation.images[slot], slot) for slot in present]
        patches = self._images(images)
        for slot, image, tokens in zip(present, images, patches.tokens, strict=True):
            if tokens > self._info.image_tokens:
                raise OxygenError(
                    f'the {image.shape[1]}x{image.shape[0]} image of {slot} takes {tokens} '
                    f'tokens, {self._info.image_tokens} are reserved for a camera: send smaller '
                    f'images, or set max_image_tokens to {tokens} in oxygen.json'
                )
        return patches

    def _prompt(
        self, instruction: str, views: list[str], tokens: list[int]
    ) -> tuple[list[int], bool]:
        """Ids of the common prefix, and whether the task was shortened."""
        task = instruction.strip()
        if not task:
            raise OxygenError('the instruction is empty: say what the robot shall do')
        self.tokenizer.checked(task, 'instruction')
        limit = self._info.text_tokens + sum(tokens)

        def ids_of(length: int) -> list[int]:
            return self.tokenizer.encode(spread(compose(task[:length], views), tokens))

        return shortened(ids_of, len(task), limit, self.tokenizer.longest)

    def _state(self, state: np.ndarray) -> np.ndarray:
        """The robot's state as it is, zero padded to the network's width."""
        values = np.asarray(state, np.float32)
        if values.shape != (self._info.state_dim,):
            raise OxygenError(
                f'state has shape {list(values.shape)}, the checkpoint expects '
                f'[{self._info.state_dim}]; change the joints in the contract, or state_dim in '
                'oxygen.json'
            )
        if not np.isfinite(values).all():
            wrong = np.flatnonzero(~np.isfinite(values)).tolist()
            raise OxygenError(f'state is not a finite number at index {wrong}')
        return np.pad(values, (0, self._info.state_width - len(values)))


def compose(task: str, views: list[str]) -> str:
    """The prompt up to the assistant's turn, with one placeholder per view."""
    seen = ''.join(f'# {view}\n{VIEW}\n' for view in views)
    return (
        '<|im_start|>user\nThe following observations are captured from multiple views.\n'
        f'{seen}Generate robot actions for the task:\n{task} /no_cot<|im_end|>\n'
        '<|im_start|>assistant\n'
    )

"""Around the weights of pi0.5 and pi0: an Observation in, tensors out, and actions back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from oxygen_ros.checkpoint.info import Pi05Info
from oxygen_ros.processing import normalization
from oxygen_ros.processing.images import checked_image, present_cameras, resize_with_pad
from oxygen_ros.processing.prompt import clean_task, fit_prompt, state_bins
from oxygen_ros.processing.tokenizer import Detokenizer, Tokenizer
from oxygen_ros.types import Observation, OxygenError


@dataclass(frozen=True)
class Pi05Inputs:
    """One frame as the network takes it; made by Pi05Processor.

    pixel_values: float32 [C, 3, h, w] in [-1, 1], present cameras only, in slot order.
    token_ids: int64 [n], not padded. truncated: the instruction was shortened to fit.
    state: float32 [A_state], normalised and padded, where the network embeds it (pi0).
    """

    pixel_values: torch.Tensor
    token_ids: torch.Tensor
    truncated: bool
    state: torch.Tensor | None = None


class Pi05Processor:
    """Processing of one checkpoint, by its maker's rules."""

    def __init__(self, info: Pi05Info):
        """Raises OxygenError if the tokenizer cannot be loaded."""
        self._info = info
        self._tokenizer = Tokenizer(info.tokenizer_dir, info.arch.vocab_size)

    @property
    def eos_id(self) -> int:
        """The token that ends an answer."""
        return self._tokenizer.eos_id

    def frame(self, observation: Observation) -> Pi05Inputs:
        """Tensors of one frame. Raises OxygenError that lists what is allowed."""
        images = self._images(observation)
        own = self._state(observation)
        ids, truncated = self._prompt(observation, own)
        return Pi05Inputs(
            images, torch.tensor(ids, dtype=torch.int64), truncated, self._embedded(own)
        )

    def prompt_tokens(self, text: str) -> list[int]:
        """Ids of a language request's own words, which follow the prefix. Raises OxygenError."""
        return self._tokenizer.encode(text, bos=False)

    def detokenizer(self) -> Detokenizer:
        """A fresh stream that turns one answer's ids into text."""
        return self._tokenizer.detokenizer()

    def robot_actions(self, normalised: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Network's actions [H, A_padded] -> float32 [H, A] in robot units, absolute.

        state: [state_dim] of the frame that was answered; relative actions count from it.
        """
        anchor = normalization.anchored(state, self._info.relative_actions)
        return normalization.robot_actions(normalised, self._info.normalization) + anchor

    def network_actions(self, actions: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Robot units [n, A] -> float32 [n, A] as the network has them, not padded."""
        anchor = normalization.anchored(state, self._info.relative_actions)
        return normalization.network_actions(actions - anchor, self._info.normalization)

    def _images(self, observation: Observation) -> torch.Tensor:
        """float32 [C, 3, h, w] of the cameras that are there, in slot order."""
        present = present_cameras(observation, self._info.cameras)
        height, width = self._info.image_resolution
        return torch.stack(
            [
                resize_with_pad(
                    checked_image(observation.images[slot], slot),
                    height,
                    width,
                    self._info.image_resize,
                )
                for slot in present
            ]
        )

    def _state(self, observation: Observation) -> np.ndarray:
        """The normalised state [state_dim]."""
        state = np.asarray(observation.state)
        if state.shape != (self._info.state_dim,):
            raise OxygenError(
                f'state has shape {list(state.shape)}, the checkpoint expects '
                f'[{self._info.state_dim}]; change the joints in the contract'
            )
        return normalization.normalize_state(state.astype(np.float32), self._info.normalization)

    def _embedded(self, own: np.ndarray) -> torch.Tensor | None:
        """The state that pi0 reads; StarVLA pads it as in the prompt if it is there as well."""
        width = self._info.arch.state_dim_padded
        if not width:
            return None
        pad = self._info.prompt_state_pad if self._info.state_in_prompt else 0.0
        padded = np.full(width, pad, np.float32)
        padded[: len(own)] = own
        return torch.from_numpy(padded)

    def _prompt(self, observation: Observation, own: np.ndarray) -> tuple[list[int], bool]:
        """Token ids of task and normalised state, and whether the task was shortened."""
        layout = self._info.prompt_layout
        task = clean_task(observation.instruction, layout)
        if not task.strip():
            raise OxygenError('the instruction is empty: say what the robot shall do')
        lacking = max(0, self._info.prompt_state_dim - len(own))
        bins = state_bins(np.append(own, np.full(lacking, self._info.prompt_state_pad)))
        return fit_prompt(
            task,
            bins.tolist() if self._info.state_in_prompt else None,
            layout,
            self._info.tokenizer_max_length,
            self._tokenizer.encode,
            self._tokenizer.longest,
        )

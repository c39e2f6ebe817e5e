"""Examples as the network takes them: the same processing as at inference, padded to a batch."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch

from oxygen_ros.processing.pi05 import Pi05Processor
from oxygen_ros.tabletop import language
from oxygen_ros.tabletop.render import CAMERAS, SIZE, block_pixels, observations
from oxygen_ros.tabletop.samples import Examples
from oxygen_ros.tabletop.world import Scenes, TaskColumns

IGNORED = -100
_OFFSET_M = 0.2  # unit of the auxiliary targets
# What is asked of each example: a long answer, or several short ones.
_LONG = ('scene',)
_SHORT = ('where', ('subtask', 'subtask', 'progress', 'holding', 'tray'))
_LONG_SHARE, _NO_RIGHT_WRIST = 0.35, 0.15


@dataclass(frozen=True)
class Batch:
    """B examples, C cameras, P prompt tokens, Q questions of T tokens.

    pixels float32 [B, C, 3, h, w]; prompt int64 [B, P], prompt_length [B]; actions [B, H, 4] as
    the network has them; words int64 [B, Q, T]: question and answer; next_words [B, Q, T]: what
    follows each, IGNORED within the question and behind the end; offsets [B, 2, 2]: from the
    gripper to the task's block and to its tray, in units of _OFFSET_M; places [B, C, colours, 2]:
    column and row of each block in each picture, as a share of its side, NaN where it is not;
    colour int64 [B]: of the task's block.
    """

    pixels: torch.Tensor
    prompt: torch.Tensor
    prompt_length: torch.Tensor
    actions: torch.Tensor
    words: torch.Tensor
    next_words: torch.Tensor
    offsets: torch.Tensor
    places: torch.Tensor
    colour: torch.Tensor

    def rows(self, begin: int, end: int) -> Batch:
        """Some of the examples."""
        return Batch(*(getattr(self, field.name)[begin:end] for field in fields(self)))


class Batcher:
    """Turns examples into batches with a checkpoint's own processor."""

    def __init__(self, processor: Pi05Processor) -> None:
        self._processor = processor
        self._ids: dict[str, list[int]] = {}

    def batch(self, rng: np.random.Generator, given: Examples) -> Batch:
        """All examples as one batch with the same cameras."""
        cameras = CAMERAS[:2] if rng.random() < _NO_RIGHT_WRIST else CAMERAS
        frames = [
            self._processor.frame(observation)
            for observation in observations(given.scenes, [t.text for t in given.tasks], cameras)
        ]
        lengths = torch.tensor([len(frame.token_ids) for frame in frames])
        prompt = torch.zeros(len(frames), int(lengths.max()), dtype=torch.int64)
        for row, frame in zip(prompt, frames, strict=True):
            row[: len(frame.token_ids)] = frame.token_ids
        joints = given.scenes.joints.astype(np.float32)
        actions = [
            self._processor.network_actions(chunk.astype(np.float32), state)
            for chunk, state in zip(given.actions, joints, strict=True)
        ]
        words, next_words = self._questions(rng, given.facts)
        return Batch(
            pixels=torch.stack([frame.pixel_values for frame in frames]),
            prompt=prompt,
            prompt_length=lengths,
            actions=torch.from_numpy(np.stack(actions)),
            words=words,
            next_words=next_words,
            offsets=_offsets(given),
            places=torch.from_numpy(_places(given.scenes, cameras)),
            colour=torch.from_numpy(TaskColumns.of(given.tasks).colour),
        )

    def _questions(
        self, rng: np.random.Generator, facts: list[language.Facts]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kinds = _LONG if rng.random() < _LONG_SHARE else _SHORT
        pairs = [[self._pair(rng, known, _one_of(rng, kind)) for kind in kinds] for known in facts]
        longest = max(len(p) + len(a) for questions in pairs for p, a in questions)
        words = torch.zeros(len(facts), len(kinds), longest, dtype=torch.int64)
        following = torch.full_like(words, IGNORED)
        for row, questions in enumerate(pairs):
            for column, (prompt, answer) in enumerate(questions):
                said = torch.tensor([*prompt, *answer])
                words[row, column, : len(said)] = said
                begin = len(prompt) - 1
                ends = torch.tensor([*answer, self._processor.eos_id])
                following[row, column, begin : begin + len(ends)] = ends
        return words, following

    def _pair(
        self, rng: np.random.Generator, known: language.Facts, kind: str
    ) -> tuple[list[int], list[int]]:
        """Tokens of a question and of its best answer."""
        question = language.ask(rng, known, kind)
        answer = language.answers(question, known)[0]
        return self._tokens(question.prompt), self._tokens(' ' + answer)

    def _tokens(self, text: str) -> list[int]:
        if text not in self._ids:
            self._ids[text] = self._processor.prompt_tokens(text)
        return self._ids[text]


def _one_of(rng: np.random.Generator, kind: str | tuple[str, ...]) -> str:
    return kind if isinstance(kind, str) else kind[rng.integers(len(kind))]


def _offsets(given: Examples) -> torch.Tensor:
    columns, scenes = TaskColumns.of(given.tasks), given.scenes
    here = scenes.joints[:, :2]
    tray = scenes.trays[np.arange(len(scenes)), columns.side]
    own = scenes.block_of(columns.colour)
    found = np.stack([own - here, tray - here], 1) / _OFFSET_M
    return torch.from_numpy(found.astype(np.float32))


def _places(scenes: Scenes, cameras: tuple[str, ...]) -> np.ndarray:
    places = [block_pixels(scenes, camera) for camera in cameras]
    return (np.stack(places, 1) / SIZE).astype(np.float32)

"""The live world: episode after episode, what is true at each frame, and the score. No ROS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxygen_ros.tabletop import language
from oxygen_ros.tabletop.episode import LIMIT_S, Referee, Run, episode_scene
from oxygen_ros.tabletop.language import Facts, Question
from oxygen_ros.tabletop.render import CAMERAS, render
from oxygen_ros.tabletop.world import TICK_S

SETTLE_S = 0.3  # from a new instruction until actions count
REST_S = 0.8  # the scene stays for so long when its goal is reached
_REMEMBERED = 600  # frames
# Task of the node -> kinds of question it is asked.
ASKED = {
    'subtask': ('subtask',),
    'memory': ('progress',),
    'conversation': ('where', 'scene', 'holding', 'tray'),
}


@dataclass
class Answered:
    """Answers so far. skipped: of frames that belong to another episode than the question."""

    right: int = 0
    wrong: int = 0
    skipped: int = 0
    by_kind: list[tuple[str, bool]] = field(default_factory=list)
    best: int = 0  # of the right ones, those that need no margin
    mistakes: list[tuple[str, str, str]] = field(default_factory=list)


class Stage:
    """The world between two ticks. seed: of layouts and instructions. cameras: that look."""

    def __init__(self, seed: int, cameras: tuple[str, ...] = CAMERAS) -> None:
        self._seed = seed
        self._cameras = cameras
        self._rng = np.random.default_rng([seed, 9])
        self.number = -1
        self.runs: list[Run] = []
        self.answered = Answered()
        self._known: dict[int, tuple[int, Facts]] = {}
        self._asked: dict[str, tuple[int, Question]] = {}
        self.begin()

    def begin(self) -> None:
        """The next episode."""
        self.number += 1
        self.scenes, self.task, _ = episode_scene(self._seed, self.number)
        self.run, self._tick = Run(self.task), 0
        self._referee = Referee(self.run, round(SETTLE_S / TICK_S))
        self._frame: int | None = None  # whose chunk moves the arm
        self._end = round((LIMIT_S + SETTLE_S) / TICK_S)

    @property
    def settled(self) -> bool:
        """Whether actions count already."""
        return self._tick * TICK_S >= SETTLE_S

    def tick(self, command: np.ndarray | None, frame: int | None = None) -> bool:
        """One tick towards a command [4], None to stay; True when the episode is over.

        frame: whose chunk the command is of.
        """
        self._tick += 1
        if command is not None:
            self.scenes.step(command[None])
            if self.run.reached_s is None:
                self._note(command, frame)
        if self.run.reached_s is None and self._referee.reached(self.scenes, self._tick):
            self._end = self._tick + round(REST_S / TICK_S)
        over = self._tick >= self._end
        if over:
            self.runs.append(self.run)
        return over

    def _note(self, command: np.ndarray, frame: int | None) -> None:
        if frame != self._frame:
            self._frame = frame
            self.run.seams.append(len(self.run.commands))
        self.run.commands.append(command)

    def picture(self, stamp_ns: int) -> np.ndarray:
        """What the cameras see, uint8 [cameras, h, w, 3], and remember what is true of it."""
        (known,) = language.facts(self.scenes, [self.task])
        self._known[stamp_ns] = (self.number, known)
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return render(self.scenes, self._cameras)[0]

    def ask(self, request_id: str, task: str) -> str:
        """A question for one of the node's tasks: its prompt."""
        (known,) = language.facts(self.scenes, [self.task])
        kind = str(self._rng.choice(ASKED[task]))
        question = language.ask(self._rng, known, kind)
        self._asked[request_id] = (self.number, question)
        return question.prompt

    def hear(self, request_id: str, stamp_ns: int, answer: str) -> None:
        """An answer is complete: compare it with the scene of its frame."""
        number, question = self._asked.pop(request_id, (-1, Question('', '')))
        seen_in, known = self._known.get(stamp_ns, (-2, None))
        if known is None or number != seen_in:
            self.answered.skipped += 1
            return
        right = language.right(question, known, answer)
        self.answered.right += right
        self.answered.wrong += not right
        self.answered.best += language.best(question, known, answer)
        self.answered.by_kind.append((question.kind, right))
        if not right:
            best = language.answers(question, known)[0]
            self.answered.mistakes.append((question.prompt, answer, best))

    def standing(self) -> dict[str, Any]:
        """The score so far."""
        return {
            'instruction': self.task.text,
            'episodes': len(self.runs),
            'successes': sum(run.reached_s is not None for run in self.runs),
            'answers': self.answered.right + self.answered.wrong,
            'answers_right': self.answered.right,
        }

"""What an episode is: its scene, its goal, and what comes of it. No policy, no ROS."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from oxygen_ros.tabletop import language
from oxygen_ros.tabletop.tasks import UNSEEN, Task, draw
from oxygen_ros.tabletop.world import TICK_S, Scenes, done, layout

FRAME_TICKS = 7  # 10 frames/s
EDGE_SLACK = 0.01  # m: the expert pushes as far as the line, this near to it counts
LIMIT_S, STAYS_S = 12.0, 0.4  # an episode's length; how long its goal must last


@dataclass
class Spoken:
    """A question about a frame's scene, the facts of that scene, and the answer so far."""

    question: language.Question
    known: language.Facts
    answer: str = ''

    @property
    def right(self) -> bool:
        """Whether the answer is true."""
        return language.right(self.question, self.known, self.answer)


@dataclass
class Run:
    """What an episode came to. reached_s: when the goal was there to stay, None for never.

    commands [ticks, 4], as published; seams: ticks at which a new chunk took over.
    """

    task: Task
    reached_s: float | None = None
    commands: list[np.ndarray] = field(default_factory=list)
    seams: list[int] = field(default_factory=list)
    spoken: list[Spoken] = field(default_factory=list)


def episode_scene(seed: int, number: int) -> tuple[Scenes, Task, np.random.Generator]:
    """Layout and task of an episode that training has not seen."""
    rng = np.random.default_rng([seed, 7, number])
    (task,) = draw(rng, UNSEEN, 1)
    return layout(rng, [task]), task, rng


class Goal:
    """Watches for the goal to be there to stay."""

    def __init__(self, task: Task) -> None:
        self._tasks = [task]
        self._since: int | None = None

    def reached(self, scenes: Scenes, tick: int) -> int | None:
        """The tick since which it is, once it has lasted STAYS_S."""
        if not done(scenes, self._tasks, EDGE_SLACK)[0]:
            self._since = None
        elif self._since is None:
            self._since = tick
        stayed = self._since is not None and (tick - self._since) * TICK_S >= STAYS_S
        return self._since if stayed else None

"""What an episode is: its scene, its goal, and what comes of it. No policy, no ROS."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from oxygen_ros.tabletop import language
from oxygen_ros.tabletop.tasks import UNSEEN, Task, draw
from oxygen_ros.tabletop.world import TICK_S, Scenes, done, layout

FRAME_TICKS = 7  # 10 frames/s
NEAR_LINE = 0.01  # m: how much too early a push may end that is near its goal
LIMIT_S, STAYS_S = 12.0, 0.4  # an episode's length; how long its goal must last


@dataclass
class Spoken:
    """A question about a frame's scene, the facts of that scene, and the answer so far."""

    question: language.Question
    known: language.Facts
    answer: str = ''

    @property
    def right(self) -> bool:
        """Whether the answer is true, near a border with either of its names."""
        return language.right(self.question, self.known, self.answer)

    @property
    def best(self) -> bool:
        """Whether it is the one answer that is right without any margin."""
        return language.best(self.question, self.known, self.answer)


@dataclass
class Run:
    """What an episode came to. reached_s: when the goal was there to stay, None for never.

    near_s: the same, if a push may end NEAR_LINE before its line.
    commands [ticks, 4], as published; seams: ticks at which a new chunk took over.
    """

    task: Task
    reached_s: float | None = None
    near_s: float | None = None
    commands: list[np.ndarray] = field(default_factory=list)
    seams: list[int] = field(default_factory=list)
    spoken: list[Spoken] = field(default_factory=list)


def episode_scene(seed: int, number: int) -> tuple[Scenes, Task, np.random.Generator]:
    """Layout and task of an episode that training has not seen."""
    rng = np.random.default_rng([seed, 7, number])
    (task,) = draw(rng, UNSEEN, 1)
    return layout(rng, [task]), task, rng


class Goal:
    """Watches for the goal to be there to stay. slack: m that a push may lack."""

    def __init__(self, task: Task, slack: float = 0.0) -> None:
        self._tasks = [task]
        self._slack = slack
        self._since: int | None = None

    def reached(self, scenes: Scenes, tick: int) -> int | None:
        """The tick since which it is, once it has lasted STAYS_S."""
        if not done(scenes, self._tasks, self._slack)[0]:
            self._since = None
        elif self._since is None:
            self._since = tick
        stayed = self._since is not None and (tick - self._since) * TICK_S >= STAYS_S
        return self._since if stayed else None


class Referee:
    """Writes into a run when its goals are reached. begin: the tick from which actions count."""

    def __init__(self, run: Run, begin: int = 0) -> None:
        self._run = run
        self._begin = begin
        self._goal, self._near = Goal(run.task), Goal(run.task, NEAR_LINE)

    def reached(self, scenes: Scenes, tick: int) -> bool:
        """Look at the scene after a tick; True once the goal itself was there to stay."""
        run = self._run
        if run.near_s is None:
            run.near_s = self._seconds(self._near, scenes, tick)
        if run.reached_s is None:
            run.reached_s = self._seconds(self._goal, scenes, tick)
        return run.reached_s is not None

    def _seconds(self, goal: Goal, scenes: Scenes, tick: int) -> float | None:
        since = goal.reached(scenes, tick)
        return None if since is None else max(since - self._begin, 0) * TICK_S

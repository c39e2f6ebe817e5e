"""Training examples: scenes in every state of their task, labelled by the expert.

Because the expert has no memory, states need not come from its own runs: most are thrown
together near what matters (over the block, holding it, over the tray), so that a policy that
strays finds its way back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxygen_ros.tabletop import language, tasks
from oxygen_ros.tabletop.expert import Expert, rollout
from oxygen_ros.tabletop.tasks import Task
from oxygen_ros.tabletop.world import (
    BLOCK,
    HELD_GAP,
    LOWER,
    NOTHING,
    PUSH_WALL,
    UPPER,
    Scenes,
    TaskColumns,
    layout,
)

TICKS_PER_ROW = 2  # a chunk has a row for every second tick of the stream
HORIZON = 14
_SHARES = {
    'begun': 0.2,
    'anywhere': 0.15,
    'near': 0.27,
    'holding': 0.25,
    'wrong': 0.05,
    'end': 0.08,
}
_LONGEST_TICKS, _SHORT_TICKS = 220, 20


@dataclass(frozen=True)
class Examples:
    """actions [N, HORIZON, 4]: commanded joint positions from the moment of the scene on."""

    scenes: Scenes
    tasks: list[Task]
    actions: np.ndarray
    facts: list[language.Facts]


def examples(
    rng: np.random.Generator, count: int, pool: tuple[Task, ...] = tasks.TRAINING
) -> Examples:
    """Labelled scenes of tasks of a pool."""
    told = tasks.draw(rng, pool, count)
    scenes = layout(rng, told)
    stages = rng.choice(list(_SHARES), count, p=list(_SHARES.values()))
    _scatter(rng, scenes, told, stages)
    ticks = rng.integers(0, np.where(stages == 'begun', _LONGEST_TICKS, _SHORT_TICKS), count)
    scenes = _run(rng, scenes, told, ticks)
    commands = rollout(scenes.copy(), Expert(told), HORIZON * TICKS_PER_ROW)
    return Examples(scenes, told, commands[:, ::TICKS_PER_ROW], language.facts(scenes, told))


def _run(rng: np.random.Generator, scenes: Scenes, told: list[Task], ticks: np.ndarray) -> Scenes:
    """Each scene after so many ticks of an expert with a shaking hand."""
    order = np.argsort(-ticks)  # those that run longest come first, so that the others can stop
    moving = scenes.take(order)
    ended = [moving.take([])]
    expert, left = Expert([told[i] for i in order]), ticks[order]
    push = rng.normal(0.0, 0.0015, (len(order), 4))
    for tick in range(int(ticks.max()) + 1):
        stay = int((left > tick).sum())
        if stay < len(moving):
            ended.insert(0, moving.take(np.arange(stay, len(moving))))
            moving = moving.take(np.arange(stay))
            expert = Expert(expert.tasks[:stay])
        if stay:
            push = 0.95 * push[:stay] + rng.normal(0.0, 0.0005, (stay, 4))
            moving.step(expert.command(moving) + push)
    whole = Scenes(
        *(np.concatenate([getattr(part, name) for part in ended]) for name in vars(moving))
    )
    return whole.take(np.argsort(order))


def _scatter(
    rng: np.random.Generator, scenes: Scenes, told: list[Task], stages: np.ndarray
) -> None:
    """Move arm and blocks of each scene to a state of its stage; 'begun' stays as it is."""
    columns = TaskColumns.of(told)
    for row in map(int, np.flatnonzero(stages != 'begun')):
        kind, own, side = (int(c[row]) for c in (columns.kind, columns.colour, columns.side))
        stage = stages[row]
        joints = rng.uniform([-0.24, -0.17, 0.0, 0.0], [0.24, 0.17, 0.12, 1.0])
        joints[3] = rng.choice([1.0, joints[3], 0.0], p=[0.6, 0.25, 0.15])
        if stage == 'near':
            _go_near(rng, joints, scenes.blocks[row, own], kind == 2, side * 2 - 1)
        elif stage == 'holding' and kind != 2:
            _hold(scenes, row, own, joints)
            if rng.random() < 0.4:
                joints[:2] = scenes.trays[row, side] + rng.normal(0.0, 0.03, 2)
            elif rng.random() < 0.3:
                joints[:3] = [*scenes.blocks[row, own], rng.uniform(0.005, 0.05)]
        elif stage in ('holding', 'wrong'):
            others = np.flatnonzero(scenes.present[row] & (np.arange(5) != own))
            _hold(scenes, row, int(rng.choice(others)), joints)
        elif stage == 'end':
            _finish(rng, scenes, row, (kind, own, side), joints)
        scenes.joints[row] = np.clip(joints, LOWER, UPPER)
        if scenes.held[row] != NOTHING:
            scenes.blocks[row, scenes.held[row]] = scenes.joints[row, :2]


def _go_near(
    rng: np.random.Generator, joints: np.ndarray, block: np.ndarray, push: bool, sign: int
) -> None:
    """Over the block, or behind it; low or high, open, closing or closed."""
    spread = rng.choice([0.006, 0.02, 0.05])
    joints[:2] = block + rng.normal(0.0, spread, 2)
    joints[2] = rng.choice([rng.uniform(0.004, 0.02), rng.uniform(0.0, 0.10)])
    if push:
        joints[0] -= sign * rng.uniform(BLOCK / 2 + 0.009, 0.06)
        joints[3] = rng.choice([0.0, rng.uniform(0.0, 1.0)], p=[0.75, 0.25])
    else:
        joints[3] = rng.choice([1.0, rng.uniform(0.4, 1.0), 0.0], p=[0.6, 0.32, 0.08])


def _hold(scenes: Scenes, row: int, colour: int, joints: np.ndarray) -> None:
    scenes.held[row], joints[3] = colour, HELD_GAP


def _finish(
    rng: np.random.Generator,
    scenes: Scenes,
    row: int,
    task: tuple[int, int, int],
    joints: np.ndarray,
) -> None:
    """What was asked for is there."""
    kind, own, side = task
    sign = side * 2 - 1
    if kind == 1:
        _hold(scenes, row, own, joints)
        joints[2] = rng.uniform(0.065, 0.1)
        return
    if kind == 0:
        place = scenes.trays[row, side] + rng.uniform(-1, 1, 2) * np.array([0.055, 0.04])
        joints[3] = rng.choice([1.0, rng.uniform(0.6, 1.0)])
    else:
        place = np.array(
            [sign * (PUSH_WALL + rng.uniform(0.001, 0.03)), scenes.blocks[row, own, 1]]
        )
        joints[3] = rng.choice([0.0, rng.uniform(0.0, 1.0)])
    scenes.blocks[row, own] = place
    if rng.random() < 0.8:
        joints[:2] = place + rng.normal(0.0, 0.015, 2)
        joints[0] -= (kind == 2) * sign * 0.03

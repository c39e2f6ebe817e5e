"""The table, its blocks and a gantry with a gripper: many scenes at once, deterministic by seed.

Lengths in metres: x to the right, y away from the viewer, z up. Arrays hold one row per scene:
N scenes, C colours. Joints of a scene [4]: slide_x, slide_y, lift (m) and gripper (1 is open).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from oxygen_ros.tabletop.tasks import COLOURS, Task

TICK_S = 1.0 / 70.0
JOINTS = ('slide_x', 'slide_y', 'lift', 'gripper')
LOWER = np.array([-0.26, -0.19, 0.0, 0.0])
UPPER = np.array([0.26, 0.19, 0.12, 1.0])
MAX_SPEED = np.array([0.6, 0.6, 0.6, 5.0])  # per s: what the motors can do
BLOCK = 0.04  # edge of a block
TRAY_SIZE = (0.13, 0.10)
GRASP_REACH = 0.022  # a block this far off the gripper's middle, along x and y, is still grasped
LOW_Z = 0.022  # below it the fingers are beside a block
HELD_GAP = 0.35  # gripper position when a block keeps the fingers apart
CLOSED, OPENED = 0.40, 0.60  # grasp when it closes past the one, release past the other
PUSH_WALL = 0.19  # a block beyond +- this x is at the edge
LIFTED_Z = 0.07  # a block held higher is lifted
NOTHING = -1
BLOCKS_PER_SCENE = 3


@dataclass
class Scenes:
    """State of N scenes.

    joints [N, 4]; blocks [N, C, 2] x and y; present bool [N, C]; held int [N], a colour or
    NOTHING; trays [N, 2, 2], left and right; light [N, 3], the lamp's gain on red, green, blue.
    """

    joints: np.ndarray
    blocks: np.ndarray
    present: np.ndarray
    held: np.ndarray
    trays: np.ndarray
    light: np.ndarray

    def __len__(self) -> int:
        return len(self.held)

    def copy(self) -> Scenes:
        """A copy that moves on its own."""
        return Scenes(*(getattr(self, field.name).copy() for field in fields(self)))

    def take(self, rows: np.ndarray | Sequence[int]) -> Scenes:
        """Some of the scenes, copied."""
        return Scenes(*(getattr(self, field.name)[rows].copy() for field in fields(self)))

    def block_of(self, colours: np.ndarray) -> np.ndarray:
        """Place [N, 2] of one block per scene."""
        return self.blocks[np.arange(len(self)), colours]

    def on_tray(self, places: np.ndarray, side: np.ndarray) -> np.ndarray:
        """Whether places [N, 2] lie on the tray of a side (0 left, 1 right), bool [N]."""
        offset = np.abs(places - self.trays[np.arange(len(self)), side])
        return (offset < np.array(TRAY_SIZE) / 2).all(1)

    def step(self, command: np.ndarray) -> None:
        """One tick: joints follow the commanded positions [N, 4] as fast as they can."""
        limit = MAX_SPEED * TICK_S
        before = self.joints[:, 3].copy()
        change = np.clip(command - self.joints, -limit, limit)
        self.joints = np.clip(self.joints + change, LOWER, UPPER)
        self._release()
        self._grasp(before)
        holding = np.flatnonzero(self.held != NOTHING)
        self.joints[holding, 3] = np.maximum(self.joints[holding, 3], HELD_GAP)
        self.blocks[holding, self.held[holding]] = self.joints[holding, :2]
        self._push()

    def _release(self) -> None:
        self.held[self.joints[:, 3] > OPENED] = NOTHING

    def _grasp(self, gripper_before: np.ndarray) -> None:
        closing = (gripper_before > CLOSED) & (self.joints[:, 3] <= CLOSED)
        closing &= (self.joints[:, 2] < LOW_Z) & (self.held == NOTHING)
        offset = np.abs(self.blocks - self.joints[:, None, :2]).max(2)
        offset[~self.present] = np.inf
        nearest = offset.argmin(1)
        rows = np.flatnonzero(closing & (offset.min(1) < GRASP_REACH))
        self.held[rows] = nearest[rows]

    def _push(self) -> None:
        """A closed, empty gripper between the blocks moves what it touches out of its way."""
        low = (self.joints[:, 2] < LOW_Z) & (self.joints[:, 3] < HELD_GAP - 0.02)
        low &= self.held == NOTHING
        if not low.any():
            return
        reach = np.array([BLOCK / 2 + 0.008, BLOCK / 2 + 0.012])
        offset = self.blocks - self.joints[:, None, :2]
        depth = reach - np.abs(offset)
        inside = (depth > 0).all(2) & self.present & low[:, None]
        along_x = depth[..., 0] <= depth[..., 1]
        push = np.where(offset >= 0, depth, -depth)
        self.blocks[..., 0] += np.where(inside & along_x, push[..., 0], 0.0)
        self.blocks[..., 1] += np.where(inside & ~along_x, push[..., 1], 0.0)


def done(scenes: Scenes, tasks: Sequence[Task], slack: float = 0.0) -> np.ndarray:
    """Which scenes have what their task asks for, bool [N]; slack: m that a push may lack."""
    columns = TaskColumns.of(tasks)
    place = scenes.block_of(columns.colour)
    put = scenes.on_tray(place, columns.side) & (scenes.held != columns.colour)
    lifted = (scenes.held == columns.colour) & (scenes.joints[:, 2] > LIFTED_Z)
    pushed = columns.sign * place[:, 0] > PUSH_WALL - slack
    return np.select([columns.kind == 0, columns.kind == 1], [put, lifted], pushed)


@dataclass(frozen=True)
class TaskColumns:
    """Tasks as arrays [N]: kind 0 put, 1 lift, 2 push; side 0 left, 1 right; sign -1, +1."""

    kind: np.ndarray
    colour: np.ndarray
    side: np.ndarray

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> TaskColumns:
        """The columns of some tasks."""
        kinds = np.array([('put', 'lift', 'push').index(task.kind) for task in tasks])
        colours = np.array([COLOURS.index(task.colour) for task in tasks])
        return cls(kinds, colours, np.array([int(task.side == 'right') for task in tasks]))

    @property
    def sign(self) -> np.ndarray:
        """-1 for left, +1 for right."""
        return self.side * 2 - 1


def layout(rng: np.random.Generator, tasks: Sequence[Task]) -> Scenes:
    """A fresh scene for each task: its block, two others, trays, and the arm near its home."""
    count = len(tasks)
    scenes = Scenes(
        joints=rng.uniform([-0.08, -0.13, 0.09, 1.0], [0.08, -0.03, 0.11, 1.0], (count, 4)),
        blocks=np.zeros((count, len(COLOURS), 2)),
        present=np.zeros((count, len(COLOURS)), bool),
        held=np.full(count, NOTHING),
        trays=np.array([[-0.14, 0.125], [0.14, 0.125]])
        + rng.uniform(-1, 1, (count, 2, 2)) * np.array([0.02, 0.01]),
        light=rng.uniform(0.85, 1.1, (count, 1)) * rng.uniform(0.96, 1.04, (count, 3)),
    )
    for row, task in enumerate(tasks):
        _place_blocks(rng, scenes, row, task)
    return scenes


def _place_blocks(rng: np.random.Generator, scenes: Scenes, row: int, task: Task) -> None:
    own = COLOURS.index(task.colour)
    others = rng.permutation([c for c in range(len(COLOURS)) if c != own])
    colours = [own, *others[: BLOCKS_PER_SCENE - 1]]
    while True:
        places = rng.uniform([-0.18, -0.15], [0.18, 0.045], (BLOCKS_PER_SCENE, 2))
        gaps = np.abs(places[:, None] - places[None])
        apart = gaps.max(2) + np.eye(BLOCKS_PER_SCENE) > 0.075
        if apart.all() and (task.kind != 'push' or gaps[0, 1:, 1].min() > 0.055):
            break
    if task.kind != 'push' and rng.random() < 0.25:  # one of the others lies on a tray already
        places[1] = scenes.trays[row, rng.integers(2)] + rng.uniform(-0.03, 0.03, 2)
    scenes.blocks[row, colours] = places
    scenes.present[row, colours] = True

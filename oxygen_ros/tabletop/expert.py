"""The scripted expert: what to do next, from the state of the scene alone.

It has no memory, so any state can be labelled: where it goes is a smooth function of where
everything is, a funnel towards the block and another towards its goal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxygen_ros.tabletop.tasks import Task
from oxygen_ros.tabletop.world import (
    BLOCK,
    HELD_GAP,
    LOWER,
    NOTHING,
    TICK_S,
    UPPER,
    Scenes,
    TaskColumns,
    done,
)

CRUISE_Z, GRASP_Z = 0.085, 0.008
SPEED = np.array([0.28, 0.28, 0.24])  # m/s at most
SOFT = np.array([0.045, 0.045, 0.03])  # m: slower than SPEED when nearer than about this
GRIPPER_SPEED = 3.0  # per s
ALIGNED = 0.011  # m off the block's middle at which the fingers may close


class Expert:
    """The expert for one task per scene."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)
        self.columns = TaskColumns.of(tasks)

    def command(self, scenes: Scenes) -> np.ndarray:
        """Joint positions [N, 4] to be at one tick from now."""
        target, gripper = self._targets(scenes)
        error = target - scenes.joints[:, :3]
        step = SPEED * np.tanh(error / SOFT) * TICK_S
        grip_limit = GRIPPER_SPEED * TICK_S
        grip = np.clip(gripper - scenes.joints[:, 3], -grip_limit, grip_limit)
        return np.clip(scenes.joints + np.column_stack([step, grip]), LOWER, UPPER)

    def _targets(self, scenes: Scenes) -> tuple[np.ndarray, np.ndarray]:
        """Where the gripper shall go [N, 3], and how wide it shall be [N]."""
        columns, joints = self.columns, scenes.joints
        finished = done(scenes, self.tasks)
        grasp, grasp_grip = _grasp(scenes, scenes.block_of(columns.colour))
        carry, carry_grip = self._carry(scenes)
        push, push_grip = self._push(scenes, finished)
        away, away_grip = _put_down(scenes)
        own = scenes.held == columns.colour
        wrong = (scenes.held != NOTHING) & (~own | (columns.kind == 2))
        rest = np.column_stack([joints[:, :2], np.full(len(scenes), CRUISE_Z)])
        choices = [wrong, columns.kind == 2, own, finished]
        target = np.select([c[:, None] for c in choices], [away, push, carry, rest], grasp)
        ones = np.ones(len(scenes))
        return target, np.select(choices, [away_grip, push_grip, carry_grip, ones], grasp_grip)

    def _carry(self, scenes: Scenes) -> tuple[np.ndarray, np.ndarray]:
        """The task's block is held: up, over the tray, down, open; or just up."""
        columns, joints = self.columns, scenes.joints
        tray = scenes.trays[np.arange(len(scenes)), columns.side]
        distance = np.linalg.norm(joints[:, :2] - tray, axis=1)
        low = GRASP_Z + (CRUISE_Z - GRASP_Z) * _smooth(distance, 0.015, 0.05)
        # Sideways only as far as the block is up, unless it is over the tray already.
        freedom = np.maximum(
            _smooth(joints[:, 2], 0.015, 0.05), 1.0 - _smooth(distance, 0.03, 0.05)
        )
        over = joints[:, :2] + (tray - joints[:, :2]) * freedom[:, None]
        put = np.column_stack([over, low])
        lift = np.column_stack([joints[:, :2], np.full(len(scenes), CRUISE_Z + 0.005)])
        is_put = columns.kind == 0
        opens = is_put & (distance < 0.025) & (joints[:, 2] < GRASP_Z + 0.008)
        return np.where(is_put[:, None], put, lift), opens.astype(float)

    def _push(self, scenes: Scenes, finished: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Closed and low behind the block, then sideways; from elsewhere high and around."""
        columns, joints = self.columns, scenes.joints
        block, sign = scenes.block_of(columns.colour), self.columns.sign
        behind = block.copy()
        behind[:, 0] -= sign * (BLOCK / 2 + 0.024)
        back = sign * (block[:, 0] - joints[:, 0])  # how far the gripper is behind the block
        aside = np.abs(joints[:, 1] - block[:, 1])
        distance = np.linalg.norm(joints[:, :2] - behind, axis=1)
        in_lane = (back > 0.018) & (back < 0.058) & (aside < 0.016)
        moving = in_lane & (joints[:, 2] < 0.020) & (joints[:, 3] < HELD_GAP - 0.05) & ~finished
        height = GRASP_Z + (CRUISE_Z - GRASP_Z) * _smooth(distance, 0.012, 0.045)
        height = np.where(joints[:, 3] > 0.5, CRUISE_Z, height)  # closes before it goes down
        around = np.column_stack([behind, height])
        onward = np.column_stack(
            [joints[:, 0] + sign * 0.06, block[:, 1], np.full(len(back), GRASP_Z)]
        )
        rest = np.column_stack([joints[:, :2], np.full(len(scenes), CRUISE_Z)])
        choices = [finished[:, None], moving[:, None]]
        return np.select(choices, [rest, onward], around), np.zeros(len(scenes))


def _grasp(scenes: Scenes, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over the block, down, close; open and up again where the fingers closed on nothing."""
    joints = scenes.joints
    offset = np.abs(joints[:, :2] - block).max(1)
    height = GRASP_Z + (CRUISE_Z - GRASP_Z) * _smooth(offset, 0.012, 0.045)
    down = (offset < ALIGNED) & (joints[:, 2] < GRASP_Z + 0.006)
    missed = joints[:, 3] < HELD_GAP - 0.02
    not_open = (joints[:, 3] < 0.8) & ~down
    height = np.where(missed | not_open, CRUISE_Z, height)
    closes = down & ~missed
    return np.column_stack([block, height]), np.where(closes, 0.0, 1.0)


def _put_down(scenes: Scenes) -> tuple[np.ndarray, np.ndarray]:
    """Another block is held: let it go where it is."""
    joints = scenes.joints
    target = np.column_stack([joints[:, :2], np.full(len(scenes), GRASP_Z)])
    return target, (joints[:, 2] < GRASP_Z + 0.008).astype(float)


def _smooth(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 below low, 1 above high, and an eased way between."""
    share = np.clip((value - low) / (high - low), 0.0, 1.0)
    return share * share * (3.0 - 2.0 * share)


def rollout(scenes: Scenes, expert: Expert, ticks: int) -> np.ndarray:
    """Let the expert move the scenes; its commands [N, ticks, 4]."""
    commands = []
    for _ in range(ticks):
        command = expert.command(scenes)
        scenes.step(command)
        commands.append(command)
    return np.stack(commands, 1)

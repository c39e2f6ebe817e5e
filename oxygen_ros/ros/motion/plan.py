"""A chunk laid out in time, and how a new one is joined to those before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oxygen_ros.types import ActionChunk

# Weight of the next newer chunk against the one before, as in action chunking with transformers.
NEWER_WEIGHT = math.exp(-0.01)


def due_row(age_ns: int, step_ns: int, valid_ns: int, horizon: int) -> tuple[int, bool]:
    """Row of a chunk whose row 0 was due age_ns ago, and whether it has run out.

    valid_ns: for how long rows count from there on. What has run out gives the last valid row;
    a chunk from the future (age below 0) starts with row 0.
    """
    last = min(horizon - 1, max((valid_ns - 1) // step_ns, 0))
    index = max(age_ns, 0) // step_ns
    return (last, True) if index > last or age_ns >= valid_ns else (index, False)


@dataclass(frozen=True)
class Plan:
    """Rows [H, A] in robot units: row h is due at start_ns + h * step_ns, none after expires_ns.

    rows: those of the chunk, or merged with those of earlier ones.
    """

    chunk: ActionChunk
    rows: np.ndarray
    start_ns: int
    expires_ns: int
    step_ns: int
    interpolate: bool = False

    @property
    def last(self) -> int:
        """The last row that may be used."""
        valid_ns = self.expires_ns - self.start_ns
        return min(len(self.rows) - 1, max((valid_ns - 1) // self.step_ns, 0))

    @property
    def last_due_ns(self) -> int:
        """When that row is due."""
        return self.start_ns + self.last * self.step_ns

    @property
    def ends_ns(self) -> int:
        """When there is no row left."""
        return min(self.last_due_ns + self.step_ns, self.expires_ns)

    def row_at(self, now_ns: int) -> tuple[int, bool]:
        """Index of the row that is due, and whether the plan has run out (then its last)."""
        valid_ns = self.expires_ns - self.start_ns
        return due_row(now_ns - self.start_ns, self.step_ns, valid_ns, len(self.rows))

    def resampled(self, times_ns: np.ndarray) -> np.ndarray:
        """The plan at other times than its rows', between two of them on a line, float64 [N, A].

        Before the first and after the last row these themselves.
        """
        rows = np.clip((times_ns - self.start_ns) / self.step_ns, 0, self.last)
        below = np.floor(rows).astype(np.int64)
        share = (rows - below)[:, None]
        above = np.minimum(below + 1, self.last)
        return (1 - share) * self.rows[below] + share * self.rows[above]

    def values(self, now_ns: int) -> np.ndarray:
        """What is due now, float64 [A]."""
        if self.interpolate:
            return self.resampled(np.array([now_ns]))[0]
        return self.rows[self.row_at(now_ns)[0]].astype(np.float64)

    def final_velocity(self) -> np.ndarray:
        """Of the last two valid rows, per s, [A]; zeros where there is one."""
        before = max(self.last - 1, 0)
        rows = self.rows.astype(np.float64)
        return (rows[self.last] - rows[before]) / (self.step_ns / 1e9)

    def due_times(self) -> np.ndarray:
        """When each row is due, int64 [H]."""
        return self.start_ns + np.arange(len(self.rows), dtype=np.int64) * self.step_ns


def blended(old: Plan, new: Plan, now_ns: int, steps: int) -> np.ndarray:
    """Rows of the new plan that leave the old one over some steps from now on, [H, A]."""
    first, _ = new.row_at(now_ns)
    share = (np.arange(len(new.rows)) - first + 1) / (steps + 1)
    share = np.clip(share, 0.0, 1.0)[:, None]
    return (1 - share) * old.resampled(new.due_times()) + share * new.rows


def averaged(plans: Sequence[Plan], new: Plan) -> np.ndarray:
    """Rows [H, A]: of all plans (oldest first) that have one when a row of new is due.

    The older weighs more, by the same factor from one to the next.
    """
    times = new.due_times()
    weights, total = np.zeros((len(times), 1)), np.zeros(new.rows.shape)
    for number, plan in enumerate([*plans, new]):
        has_row = (times >= plan.start_ns) & (times <= plan.last_due_ns) | (plan is new)
        weight = NEWER_WEIGHT**number * has_row[:, None].astype(np.float64)
        weights += weight
        total += weight * plan.resampled(times)
    return total / weights

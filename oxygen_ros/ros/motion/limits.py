"""Limits per joint: which chunks are refused, and how fast published steps may change.

All values are in robot units; v is velocity per s, a acceleration per s^2, A joints.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxygen_ros.ros.joints import Joint


class Limits:
    """Limits of some joints, [A] each; infinite where the contract sets none."""

    def __init__(self, joints: Sequence[Joint]) -> None:
        self._names = [joint.name for joint in joints]
        self.lower = _column([joint.lower for joint in joints], -np.inf)
        self.upper = _column([joint.upper for joint in joints], np.inf)
        self.velocity = _column([joint.max_velocity for joint in joints], np.inf)
        self.acceleration = _column([joint.max_acceleration for joint in joints], np.inf)

    def problem(self, actions: np.ndarray) -> tuple[str, str]:
        """Reason and text why a chunk, float32 [H, A], must not be used; ('', '') if it may."""
        finite = np.isfinite(actions)
        if not finite.all():
            row, joint = np.argwhere(~finite)[0]
            return 'chunk_not_finite', self._text(actions, row, joint, 'must be a finite number')
        # In 32 bits on both sides, so that a limit itself is allowed.
        lower, upper = self.lower.astype(np.float32), self.upper.astype(np.float32)
        beyond = (actions < lower) | (actions > upper)
        if not beyond.any():
            return '', ''
        row, joint = np.argwhere(beyond)[0]
        allowed = f'must be {self.lower[joint]:g} to {self.upper[joint]:g}'
        return 'chunk_out_of_limits', self._text(actions, row, joint, allowed)

    def _text(self, actions: np.ndarray, row: int, joint: int, allowed: str) -> str:
        return f'row {row}: {self._names[joint]} is {actions[row, joint]:g}, {allowed}'


class Limiter:
    """Lets published steps follow a target no faster than the limits, period_s apart.

    Joints without velocity and acceleration limits pass through unchanged. A limited joint
    never overshoots a target that stands still, and always keeps room to stop before lower and
    upper.
    """

    def __init__(self, limits: Limits, period_s: float) -> None:
        self._limits = limits
        self._period_s = period_s
        self._free = np.isinf(limits.velocity) & np.isinf(limits.acceleration)
        self._position: np.ndarray | None = None
        self._velocity = np.zeros(len(self._free))
        self._target: np.ndarray | None = None

    def start(self, position: np.ndarray) -> None:
        """Stand still at a position [A]; a joint that is NaN there starts at its first target."""
        self._position, self._target = position.astype(np.float64), None
        self._velocity = np.zeros(len(position))

    def forget(self) -> None:
        """The next target is taken as it is."""
        self._position = self._target = None
        self._velocity = np.zeros(len(self._free))

    def copy(self, period_s: float) -> Limiter:
        """Another one for steps of another period that goes on from here."""
        other = Limiter(self._limits, period_s)
        other._position, other._velocity = self._position, self._velocity
        other._target = self._position
        return other

    def follow(self, target: np.ndarray) -> tuple[np.ndarray, bool]:
        """The next step [A] towards a target [A], and whether a limit held it back."""
        target = target.astype(np.float64)
        if self._free.all():
            self._position = target
            return target, False
        unknown = np.isnan(target) if self._position is None else np.isnan(self._position)
        if self._position is None:
            self._position = target.copy()
        self._position = np.where(unknown | self._free, target, self._position)
        before = self._target if self._target is not None else target
        wanted = (target - self._position) / self._period_s
        velocity = self._bounded(wanted, (target - before) / self._period_s)
        held_back = ~self._free & (np.abs(velocity - wanted) > 1e-9 * (1 + np.abs(wanted)))
        moved = np.where(held_back, self._position + velocity * self._period_s, target)
        self._velocity = np.where(held_back, velocity, wanted)
        self._position, self._target = moved, target
        return moved, bool(held_back.any())

    def _bounded(self, wanted: np.ndarray, target_velocity: np.ndarray) -> np.ndarray:
        """The velocity nearest to the wanted one that every limit allows."""
        limits, position = self._limits, self._position
        assert position is not None, 'follow() sets it'
        change = limits.acceleration * self._period_s
        # Towards a target that stands still, no faster than can be braked in front of it.
        pace = np.clip(target_velocity, -limits.velocity, limits.velocity)
        brake = self._stopping(np.abs(wanted - pace) * self._period_s)
        wanted = np.clip(wanted, pace - brake, pace + brake)
        most = np.minimum(limits.velocity, self._stopping(limits.upper - position))
        least = -np.minimum(limits.velocity, self._stopping(position - limits.lower))
        # A start outside the limits leaves no room: the change of velocity is what holds then.
        low = np.clip(least, self._velocity - change, self._velocity + change)
        high = np.clip(most, self._velocity - change, self._velocity + change)
        slow = np.clip(wanted, self._velocity - change, self._velocity + change)
        return np.clip(slow, low, np.maximum(low, high))

    def _stopping(self, distance: np.ndarray) -> np.ndarray:
        """The highest velocity from which one stops within a distance [A], this step included.

        Steps of v, v - u, v - 2u ... times the period, u = a * period, must not exceed it.
        """
        steps = np.maximum(distance, 0.0) / self._period_s
        change = self._limits.acceleration * self._period_s
        with np.errstate(invalid='ignore'):
            whole = np.floor((np.sqrt(1.0 + 8.0 * steps / change) - 1.0) / 2.0)
            braked = (steps + change * whole * (whole + 1) / 2.0) / (whole + 1)
        return np.where(np.isinf(change) | np.isinf(steps), steps, braked)


def _column(values: Sequence[float | None], unset: float) -> np.ndarray:
    return np.array([unset if value is None else value for value in values], np.float64)

"""Joints by name, and the one place where robot units become the checkpoint's and back.

    robot = offset + scale * model        model = (robot - offset) / scale

with the sign of scale turned where `invert` is set. State goes one way, actions the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oxygen_ros.types import ActionChunk

# Of one model unit: what float32 may lose on the way to the robot and back.
ROUND_TRIP_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Joint:
    """One joint, bound by its ROS name. offset: the robot's value where the model says 0.

    scale: how far the robot moves for one unit of the model. invert: the model counts the other
    way, as if scale were negative. lower to max_acceleration: limits of the actions in robot
    units, per s and per s^2; None is none.
    """

    name: str
    scale: float = 1.0
    offset: float = 0.0
    invert: bool = False
    lower: float | None = None
    upper: float | None = None
    max_velocity: float | None = None
    max_acceleration: float | None = None

    @property
    def gain(self) -> float:
        """Scale with its sign."""
        return -self.scale if self.invert else self.scale

    @property
    def is_mapped(self) -> bool:
        """Whether robot and checkpoint differ in their units."""
        return (self.gain, self.offset) != (1.0, 0.0)

    def problem(self) -> str:
        """What is wrong with the mapping or the limits, or an empty string."""
        if self.lower is not None and self.upper is not None and self.lower >= self.upper:
            return f'lower {self.lower:g} must be below upper {self.upper:g}'
        if self.scale == 0:
            return 'scale is 0: must not be 0, it is how far the robot moves for one model unit'
        if self.invert and self.scale < 0:
            return f'scale {self.scale:g} and invert: true cancel out: state one of them'
        model = np.array([-1.0, 0.0, 1.0], np.float32)
        units = JointMap([self] * len(model))
        there_and_back = units.to_model(units.to_robot(model))
        if np.allclose(there_and_back, model, rtol=0.0, atol=ROUND_TRIP_TOLERANCE):
            return ''
        return (
            f'scale {self.scale:g} and offset {self.offset:g}: model values '
            f'{model.tolist()} come back from the robot as {there_and_back.tolist()}, '
            'because 32-bit numbers cannot hold both: choose units nearer to each other'
        )


class JointMap:
    """Values of some joints, last axis one column per joint, between robot and checkpoint."""

    def __init__(self, joints: Sequence[Joint]) -> None:
        self._gain = np.array([joint.gain for joint in joints])
        self._offset = np.array([joint.offset for joint in joints])
        self._same = not any(joint.is_mapped for joint in joints)

    def to_model(self, robot: np.ndarray) -> np.ndarray:
        """Robot units -> the checkpoint's, float32 [..., joints]."""
        if self._same:
            return robot
        with np.errstate(over='ignore', invalid='ignore'):  # not finite here is refused later
            return ((robot - self._offset) / self._gain).astype(np.float32)

    def to_robot(self, model: np.ndarray) -> np.ndarray:
        """The checkpoint's units -> the robot's, float32 [..., joints]."""
        if self._same:
            return model
        with np.errstate(over='ignore', invalid='ignore'):
            return (self._offset + self._gain * model).astype(np.float32)

    def chunk_to_robot(self, chunk: ActionChunk) -> ActionChunk:
        """A chunk of the policy in this robot's units."""
        return dataclasses.replace(chunk, actions=self.to_robot(chunk.actions))

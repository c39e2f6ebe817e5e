"""What the robot is told: the node's own joining of chunks and its limits, on the bag's clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from oxygen_ros.ros.contract import Contract
from oxygen_ros.ros.joints import JointMap
from oxygen_ros.ros.motion.limits import Limits
from oxygen_ros.ros.motion.mover import Mover
from oxygen_ros.ros.motion.plan import Plan
from oxygen_ros.types import ActionChunk, Observation, Overlap


@dataclass
class Streamed:
    """Steps of ~/action: when, which values [A] in robot units, how old their frame was.

    held_s: how long nothing new was left. limited: steps that a limit held back, -1 unknown.
    """

    times_ns: list[int] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    ages_ns: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    held_s: float = 0.0
    limited: int = -1


class Stream:
    """Chunks in, steps at action_rate_hz out. steps, and seams by frame number, are the result."""

    def __init__(self, contract: Contract, rate_hz: float) -> None:
        self.steps = Streamed()
        self.seams: dict[int, np.ndarray] = {}  # frame -> float64 [A], jump from the chunk before
        self.gaps = 0  # chunks that came when the one before had run out
        self._contract = contract
        self._actions = contract.actions
        self._units = JointMap(contract.actions.joints)
        self._state_units = JointMap(contract.state.joints)
        self._limits = Limits(contract.actions.joints)
        self._tick_ns = round(1e9 / rate_hz)
        self._mover = Mover(contract.actions, 1.0 / rate_hz)
        self._plan: Plan | None = None
        self._next_ns = 0
        self._segment = 0

    def problem(self, chunk: ActionChunk) -> tuple[str, str]:
        """Why the node would refuse a chunk: the word it is counted under, and what is wrong."""
        return self._limits.problem(chunk.actions)

    def offer(self, chunk: ActionChunk, segment: int, now_ns: int) -> bool:
        """Join a chunk, in robot units, to the running one; False if it has run out by now."""
        self._advance(now_ns)
        before, self._segment = self._plan, segment
        plan = self._mover.offer(chunk, now_ns)
        if plan is None:
            return False
        if before is not None and now_ns < before.ends_ns:
            self.seams[chunk.frame] = np.abs(plan.values(now_ns) - before.values(now_ns))
        elif before is not None:
            self.gaps += 1
            self.steps.held_s += (now_ns - before.ends_ns) / 1e9
        self._plan, self._next_ns = plan, max(self._next_ns, now_ns)
        return True

    def overlap(self, observation: Observation) -> Overlap | None:
        """What the chunk of this frame is to continue, as in the node, but with no delay."""
        names, joints = self._contract.state.names, self._actions.names
        state = dict(zip(names, self._state_units.to_robot(observation.state), strict=True))
        self._mover.start_from(np.array([state.get(name, math.nan) for name in joints]))
        if self._actions.merge != 'realtime':
            return None
        self._advance(observation.stamp_ns)
        rows = self._mover.overlap(observation.stamp_ns, observation.stamp_ns)
        return None if rows is None or not len(rows) else Overlap(self._units.to_model(rows), 0)

    def jump(self) -> None:
        """Stamps went back: what runs is of another time."""
        self._mover.clear()
        self._plan, self._next_ns = None, 0

    def finish(self, last_ns: int) -> None:
        """Go on with the last chunk until a time, which is that of the last joint state."""
        self._advance(last_ns)
        self.steps.limited = self._mover.limited

    def _advance(self, until_ns: int) -> None:
        """The steps that are due before a time; none once the chunk has run out."""
        if self._plan is None:
            return
        until_ns = min(until_ns, self._plan.ends_ns)
        while self._next_ns < until_ns:
            step = self._mover.tick(self._next_ns, self._next_ns)
            if step is not None and not step.hold:
                self.steps.times_ns.append(self._next_ns)
                self.steps.values.append(step.values)
                self.steps.ages_ns.append(self._next_ns - step.chunk.stamp_ns)
                self.steps.segments.append(self._segment)
            self._next_ns += self._tick_ns

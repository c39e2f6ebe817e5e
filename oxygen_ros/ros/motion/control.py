"""Between the worker's chunks and what the robot is told: units, refusals, stream, trajectory."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import numpy as np
from rclpy.node import Node

from oxygen_ros.ros.action_stream import ActionStream
from oxygen_ros.ros.contract import Contract
from oxygen_ros.ros.diagnostics import Drops
from oxygen_ros.ros.joints import JointMap
from oxygen_ros.ros.motion.limits import Limits
from oxygen_ros.ros.motion.mover import Mover
from oxygen_ros.ros.outputs import Outputs
from oxygen_ros.types import ActionChunk, Observation, Overlap

LATENCY_WINDOW_S = 5.0


class Control:
    """Chunks of one configuration. refused: why the last chunk was, or ''."""

    def __init__(
        self,
        node: Node,
        contract: Contract,
        rate_hz: float,
        outputs: Outputs,
        drops: Drops,
        clock: Callable[[], int],
    ) -> None:
        self._node = node
        self._contract = contract
        self._actions = contract.actions
        self._rate_hz = rate_hz
        self._outputs = outputs
        self._drops = drops
        self._clock = clock
        self._units = JointMap(contract.actions.joints)
        self._state_units = JointMap(contract.state.joints)
        self._limits = Limits(contract.actions.joints)
        self._latency = _Latency()
        self._stopped = ''
        self._said = ''
        self._stale = False
        self.refused = ''
        self._mover = Mover(self._actions, 1.0 / rate_hz)
        self._stream: ActionStream | None = None

    @property
    def active(self) -> bool:
        """Whether the stream runs."""
        return self._stream is not None

    @property
    def missed_ticks(self) -> int:
        """Ticks that came too late, since start()."""
        return self._stream.missed_ticks if self._stream else 0

    @property
    def state(self) -> str:
        """What the stream does, in words; empty while it does not run."""
        return self._mover.state if self._stream else ''

    @property
    def stopped(self) -> str:
        """Why the emergency stop holds, or ''."""
        return self._stopped

    def numbers(self) -> dict[str, object]:
        """For ~/status and /diagnostics."""
        seam, largest = self._mover.seam, self._mover.seam_max
        return {
            'seam_jump': seam.jump,
            'seam_joint': seam.joint,
            'seam_jump_max': largest.jump,
            'steps_limited': self._mover.limited,
            'latency_ms': round(self._latency.longest_ns() / 1e6, 1),
        }

    def start(self) -> None:
        """Begin to stream."""
        self._mover = Mover(self._actions, 1.0 / self._rate_hz)
        if self._stopped:
            self._mover.stop(self._stopped)
        self._latency.clear()
        self._stream = ActionStream(
            self._rate_hz, self._mover, self._clock, self._outputs.step, self._say_once
        )
        self._stream.start()

    def end(self) -> None:
        """End the stream with a safe last step, by contract."""
        stream, self._stream = self._stream, None
        if stream:
            stream.stop()
            self._hold_trajectory()

    def clear(self) -> None:
        """New episode: nothing is published until the next chunk."""
        self._mover.clear()
        self._latency.clear()

    def stop(self, reason: str) -> None:
        """Emergency: nothing but the last step, or silence, from the next tick on."""
        self._stopped = reason
        self._mover.stop(reason)
        if self._stream:
            self._hold_trajectory()

    def resume(self) -> None:
        """Chunks count again."""
        self._stopped = ''
        self._mover.resume()

    def take(self, chunk: ActionChunk) -> None:
        """Publish a chunk of the policy and move by it, unless something forbids it."""
        if self._stream is None or self._stopped:
            self._drops.add('chunk_stopped' if self._stopped else 'chunk_inactive')
            return
        chunk = self._units.chunk_to_robot(chunk)
        reason, problem = self._limits.problem(chunk.actions)
        self.refused = f'actions of frame {chunk.frame} are refused: {problem}' if reason else ''
        if reason:
            self._drops.add(reason, '~/action_chunk', self.refused)
            return
        self._outputs.chunk(chunk)
        now_ns = self._clock()
        self._latency.add(now_ns - chunk.stamp_ns)
        plan = self._mover.offer(chunk, now_ns)
        self._note_stale(0 if plan else now_ns - chunk.stamp_ns)
        if plan and self._actions.trajectory_topic:
            rows, times = self._mover.rows_ahead(plan, now_ns)
            self._outputs.trajectory(plan.start_ns, rows, times.tolist())

    def overlap(self, observation: Observation) -> Overlap | None:
        """What the chunk of this frame is to continue, in the model's units."""
        names, joints = self._contract.state.names, self._actions.names
        state = dict(zip(names, self._state_units.to_robot(observation.state), strict=True))
        self._mover.start_from(np.array([state.get(name, math.nan) for name in joints]))
        if self._actions.merge != 'realtime' or self._stream is None:
            return None
        now_ns = self._clock()
        rows = self._mover.overlap(observation.stamp_ns, now_ns)
        if rows is None or not len(rows):
            return None
        delay_ns = max(self._latency.longest_ns(), now_ns - observation.stamp_ns)
        delay = min(math.ceil(delay_ns / (self._actions.step_period_s * 1e9)), len(rows))
        return Overlap(self._units.to_model(rows), max(delay, 0))

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._node.get_logger().info(text)

    def _hold_trajectory(self) -> None:
        """A controller that follows a trajectory is told to stay where it was sent last."""
        now_ns = self._clock()
        step = self._mover.last_step(now_ns)
        if step is not None:
            due_ns = now_ns + round(1e9 / self._rate_hz)
            self._outputs.trajectory(now_ns, step.values[None], [due_ns])

    def _note_stale(self, age_ns: int) -> None:
        """Say once that chunks come too late to be used; age_ns 0 ends it."""
        if age_ns:
            self.refused = _stale_text(age_ns / 1e9, self._actions.valid_for_s)
            self._drops.add('chunk_late')
            if not self._stale:
                self._node.get_logger().warning(self.refused)
        self._stale = age_ns > 0


class _Latency:
    """Camera to chunk, of the last seconds; the first since clear() does not count."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: a warm-up follows."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=1000)
        self._warm = False

    def add(self, latency_ns: int) -> None:
        """One more chunk, just now."""
        if self._warm:
            self._recent.append((time.monotonic(), latency_ns))
        self._warm = True

    def longest_ns(self) -> int:
        """The longest of the window, 0 if there is none."""
        oldest = time.monotonic() - LATENCY_WINDOW_S
        return max((ns for at_s, ns in self._recent.copy() if at_s >= oldest), default=0)


def _stale_text(age_s: float, valid_s: float) -> str:
    age = f'{age_s / 86400:.0f} days' if age_s > 2 * 86400 else f'{age_s:.2f} s'
    hint = ': set use_sim_time if a bag is played' if age_s > 60 else ''
    return (
        f'chunks are {age} old by their image stamp when they are ready, and valid for '
        f'{valid_s:g} s: no action is published{hint}'
    )

"""Between the worker's chunks and what the robot is told: units, refusals, stream, trajectory."""

from __future__ import annotations

import math
import threading
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
    """Chunks of one configuration. refused: why the last chunk was, or ''.

    The worker takes chunks; other threads start, end, stop, resume, halt and clear. When one of
    these returns, nothing that was decided before it is published any more.
    """

    def __init__(
        self,
        node: Node,
        contract: Contract,
        rate_hz: float,
        outputs: Outputs,
        drops: Drops,
        clock: Callable[[], int],
        is_outdated: Callable[[], bool] = lambda: False,
    ) -> None:
        """is_outdated: whether the chunk that is taken began before a reset."""
        self._node = node
        self._contract = contract
        self._actions = contract.actions
        self._rate_hz = rate_hz
        self._outputs = outputs
        self._drops = drops
        self._clock = clock
        self._is_outdated = is_outdated
        self._gate = threading.Lock()  # held from the decision on a chunk to its publication
        self._seen = np.full(len(contract.actions.joints), math.nan)  # where the robot was last
        self._sent: tuple[np.ndarray, int] | None = None  # first point and end of a trajectory
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
    def at_rest(self) -> bool:
        """Whether nothing more comes of the chunks so far but repetitions of one step."""
        moving = self._mover.state.startswith(('streaming', 'ramping'))
        return self._stream is None or bool(self._stream.problem()) or not moving

    @property
    def problem(self) -> str:
        """Why the robot is told too little, or ''."""
        stream = self._stream
        return stream.problem() if stream else ''

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
        with self._gate:
            self._mover = Mover(self._actions, 1.0 / self._rate_hz)
            if self._stopped:
                self._mover.stop(self._stopped)
            self._latency.clear()
            self._sent = None
            self._stream = ActionStream(
                self._rate_hz,
                self._mover,
                self._clock,
                self._outputs.step,
                self._say_once,
                lambda text: self._drops.add('action_failed', '~/action', text),
            )
            self._stream.start()

    def end(self) -> None:
        """End the stream with a safe last step, by contract."""
        with self._gate:
            stream, self._stream = self._stream, None
            if stream:
                stream.stop()
                self._hold_trajectory(self._mover.last_values())

    def clear(self) -> None:
        """New episode: nothing is published until the next chunk."""
        self._halt(lambda mover: mover.clear())

    def halt(self) -> None:
        """The chunks so far count no more: the last step again, or silence, until the next."""
        self._halt(lambda mover: mover.drop_plan())

    def _halt(self, forget: Callable[[Mover], np.ndarray | None]) -> None:
        with self._gate:
            last, stream = forget(self._mover), self._stream
            self._latency.clear()
            if stream:
                self._hold_trajectory(last)
        if stream:
            stream.settle()

    def stop(self, reason: str) -> None:
        """Emergency: nothing but the last step, or silence, from the next tick on."""
        # Before the gate, which a chunk that is just published may hold for some ms.
        self._stopped = reason
        last = self._mover.stop(reason)
        with self._gate:
            stream = self._stream
            if stream:
                self._hold_trajectory(last)
        if stream:
            stream.settle()

    def resume(self) -> None:
        """Chunks count again."""
        with self._gate:
            self._stopped = ''
            self._mover.resume()

    def take(self, chunk: ActionChunk) -> None:
        """Publish a chunk of the policy and move by it, unless something forbids it."""
        chunk = self._units.chunk_to_robot(chunk)
        with self._gate:
            if unwanted := self._unwanted():
                self._drops.add(unwanted)
            elif not self._is_refused(chunk):
                self._use(chunk)

    def _unwanted(self) -> str:
        if self._stopped:
            return 'chunk_stopped'
        if self._stream is None:
            return 'chunk_inactive'
        return 'chunk_outdated' if self._is_outdated() else ''

    def _is_refused(self, chunk: ActionChunk) -> bool:
        reason, problem = self._limits.problem(chunk.actions)
        self.refused = f'actions of frame {chunk.frame} are refused: {problem}' if reason else ''
        if reason:
            self._drops.add(reason, '~/action_chunk', self.refused)
        return bool(reason)

    def _use(self, chunk: ActionChunk) -> None:
        self._outputs.chunk(chunk)
        now_ns = self._clock()
        self._latency.add(now_ns - chunk.stamp_ns)
        plan = self._mover.offer(chunk, now_ns)
        if self._stopped:  # meanwhile: then the mover did not take it
            return
        self._note_stale(0 if plan else now_ns - chunk.stamp_ns)
        if plan and self._actions.trajectory_topic:
            rows, times = self._mover.rows_ahead(plan, now_ns)
            self._send_trajectory(plan.start_ns, rows, times.tolist())

    def overlap(self, observation: Observation) -> Overlap | None:
        """What the chunk of this frame is to continue, in the model's units."""
        names, joints = self._contract.state.names, self._actions.names
        state = dict(zip(names, self._state_units.to_robot(observation.state), strict=True))
        self._seen = np.array([state.get(name, math.nan) for name in joints])
        self._mover.start_from(self._seen)
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

    def _send_trajectory(self, start_ns: int, rows: np.ndarray, times_ns: list[int]) -> None:
        if len(rows):
            self._sent = rows[0], times_ns[-1]
            self._outputs.trajectory(start_ns, rows, times_ns)

    def _hold_trajectory(self, last: np.ndarray | None) -> None:
        """A controller that follows a trajectory is told to stay at the last published step.

        One that was sent a trajectory before the first step stays where the robot was seen.
        """
        now_ns, sent, self._sent = self._clock(), self._sent, None
        if last is None and sent is not None and sent[1] > now_ns:
            last = np.where(np.isnan(self._seen), sent[0], self._seen)
        if last is not None and self._actions.trajectory_topic:
            due_ns = now_ns + round(1e9 / self._rate_hz)
            self._outputs.trajectory(now_ns, last[None], [due_ns])

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

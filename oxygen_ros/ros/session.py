"""Everything that lives between configure and cleanup, released in one place."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from rclpy.clock import JumpThreshold, TimeJump
from rclpy.duration import Duration
from rclpy.node import Node

from oxygen_ros.ros.contract import Contract, load_contract, refuse_shared_topics
from oxygen_ros.ros.diagnostics import Drops, Rates
from oxygen_ros.ros.input_ages import InputState
from oxygen_ros.ros.inputs import Inputs
from oxygen_ros.ros.motion.control import Control
from oxygen_ros.ros.observation_buffer import ObservationBuffer
from oxygen_ros.ros.outputs import Outputs
from oxygen_ros.ros.parameters import ROWS, Value, number, policy_options, texts
from oxygen_ros.ros.preflight import notes_of, preflight, refuse_misfits
from oxygen_ros.ros.word_waits import WordWaits
from oxygen_ros.ros.worker import Progress, Snapshot, Worker
from oxygen_ros.types import ActionChunk, OxygenError, PolicyInfo, TokenDelta

if TYPE_CHECKING:
    from oxygen_ros.policy import Policy

Event = Callable[['Session', str, str], None]  # loaded, changed or failed; and a text
JUMP_SAID_S = 2.0  # clock and cameras jump one after the other


class Session:
    """One configuration: contract, worker, inputs, outputs and the action stream.

    Construction checks everything that needs no weights and then begins to load them on the
    worker's thread; on_event(session, 'loaded' | 'failed', text) tells how that ended, from
    that thread, and later 'changed' when live parameters have taken effect. Raises OxygenError.
    """

    def __init__(self, node: Node, values: Mapping[str, Value], on_event: Event) -> None:
        self._node = node
        self._values = values
        self._on_event = on_event
        self.contract, notes = _checked(values, node.resolve_topic_name)
        for note in notes:
            node.get_logger().info(note)
        self.rates = Rates()
        self._drops = Drops(lambda text: _warn(node, text))
        self._buffer = ObservationBuffer(self.contract, judge_stamps=True)
        self._buffer.set_default_instruction(str(values['default_instruction']))
        self._info: PolicyInfo | None = None
        self._outputs = Outputs(
            node, self.contract.actions, texts(values, 'language_tasks'), self.rates, self._drops
        )
        self._control = Control(
            node,
            self.contract,
            number(values, 'action_rate_hz'),
            self._outputs,
            self._drops,
            self._now_ns,
            lambda: self._worker.outdated,
        )
        self._worker = Worker(
            self._make_policy,
            self,
            idle_period_s=number(values, 'idle_step_period_ms') / 1e3,
            max_commands=2 * int(number(values, 'max_queue')),
            overlap=self._control.overlap,
        )
        self._inputs = Inputs(
            node,
            self.contract,
            self._buffer,
            self._worker,
            self._outputs,
            self._drops,
            self._forget_time,
        )
        self._jumped_s = -math.inf  # on the steady clock
        self._jumps = node.get_clock().create_jump_callback(
            JumpThreshold(min_forward=None, min_backward=Duration(seconds=-0.1)),
            post_callback=self._on_clock_jump,
        )
        self._worker.start()

    @property
    def active(self) -> bool:
        """True between activate and deactivate."""
        return self._control.active

    @property
    def snapshot(self) -> Snapshot:
        """The worker's state and counters."""
        return self._worker.snapshot

    @property
    def effective(self) -> Mapping[str, str]:
        """Every option as it really is, once loaded; of the tasks only `tasks`."""
        if not self._info:
            return {}
        given = {name: value for name, value in self._values.items() if name in ROWS}
        given |= {'robot': self.contract.path, 'language_tasks': ', '.join(self._outputs.tasks)}
        return {name: str(value) for name, value in {**given, **self._info.effective}.items()}

    @property
    def missed_ticks(self) -> int:
        """Ticks of the action stream that came too late, since activation."""
        return self._control.missed_ticks

    @property
    def stream_state(self) -> str:
        """What the action stream does, in words; empty while not active."""
        return self._control.state

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with the engine and the action stream themselves, by these names."""
        found = {'engine': self._worker.watch.problem(), 'action stream': self._control.problem}
        return {part: text for part, text in found.items() if text}

    @property
    def at_rest(self) -> bool:
        """Whether nothing more comes of the chunks so far but repetitions of one step."""
        return self._control.at_rest

    @property
    def motion(self) -> dict[str, object]:
        """Numbers of seams and limits, for ~/status."""
        return self._control.numbers()

    @property
    def overhead_ms(self) -> dict[str, float]:
        """Percentiles of what the node adds around the engine, per answered frame."""
        return self._worker.overhead_ms.percentiles()

    @property
    def words(self) -> WordWaits:
        """What language waits for."""
        return self._worker.words

    def images(self) -> dict[str, int]:
        """How many images became part of observations, and how many wait for the next."""
        return {'used': self._buffer.used, 'held': self._buffer.held()}

    def inputs(self) -> list[InputState]:
        """Cameras and joint state; empty while not active."""
        return self._buffer.inputs(self._now_ns()) if self.active else []

    def activate(self) -> None:
        """Begin to serve. Raises OxygenError while the weights are not loaded."""
        snapshot = self.snapshot
        if snapshot.state != 'ready':
            raise OxygenError(
                f'the node is {snapshot.state} ({snapshot.detail}): try '
                "again when ~/status says 'inactive'"
            )
        self._buffer.reset()
        self._control.start()
        self._inputs.open()

    def change(self, values: Mapping[str, Value]) -> None:
        """Take over the parameters that may change at any time."""
        self._values = values
        self._buffer.set_default_instruction(str(values['default_instruction']))
        self._worker.change(number(values, 'idle_step_period_ms') / 1e3, self._change_policy)

    def deactivate(self) -> None:
        """Stop to serve: no more frames or actions, and all language is cancelled."""
        self._inputs.close_open()
        self._control.end()
        self._worker.reset()

    def reset(self) -> None:
        """New episode."""
        self._buffer.reset()
        self._worker.reset()  # first, so that no chunk of before can come after the next line
        self._control.clear()

    def run_out(self) -> None:
        """The engine is no more: take nothing in, and let the stream come to rest by itself."""
        self._inputs.close_open()

    def stop(self, reason: str) -> None:
        """Emergency: no more actions until resume(), and all language is cancelled."""
        self._control.stop(reason)
        self._worker.reset()

    def resume(self) -> None:
        """Actions go on with the next frame."""
        self._control.resume()

    def close(self, timeout_s: float) -> bool:
        """Release everything; False if the worker is still inside a step after timeout_s."""
        self._jumps.unregister()
        self._inputs.close()
        self._control.end()
        stopped = self._worker.stop(timeout_s)
        self._outputs.close()
        return stopped

    def has_ended(self, wait_s: float) -> bool:
        """Whether the worker's last step is over, at most wait_s after close()."""
        return self._worker.stop(wait_s)

    def dropped(self) -> Counter[str]:
        """reason -> how many messages, frames and requests were not used."""
        skipped = self.snapshot.stats.tasks_skipped
        return (
            self._drops.counts()
            + self._buffer.dropped
            + Counter({f'skipped_{task}': count for task, count in skipped.items()})
        )

    def state(self) -> tuple[str, str]:
        """State and detail of ~/status."""
        snapshot, control = self.snapshot, self._control
        moves = [] if control.state in ('', 'streaming') else [control.state]
        if snapshot.state != 'ready':
            return snapshot.state, '; '.join([*moves, snapshot.detail])
        if not self.active:
            return 'inactive', 'configured: activate to serve'
        problems = [*self.problems.values(), *self._inputs.problems]
        if control.stopped:
            return 'stopped', '; '.join([control.stopped, *self.problems.values()])
        now_ns = self._now_ns()
        if now_ns == 0:
            return 'waiting', 'use_sim_time is set, but there is nothing on /clock yet'
        if waiting := self._buffer.waiting_for(now_ns):
            return 'waiting', '; '.join([*problems, *waiting, *moves])
        refused = [control.refused] if control.refused else []
        return 'serving', '; '.join([*problems, *refused, *moves])

    def _on_clock_jump(self, jump: TimeJump) -> None:
        """The node's clock went back, or is another one now."""
        self._buffer.jump()
        self._forget_time("the node's clock went back")

    def _forget_time(self, what: str) -> None:
        """Frames, chunks and language of another time end; said once a loop of a bag."""
        self._worker.reset()
        self._control.halt()
        now_s = time.monotonic()
        if now_s - self._jumped_s > JUMP_SAID_S:
            _warn(self._node, f'{what}: frames, actions and words from before are dropped')
        self._jumped_s = now_s

    # What the worker tells, on its thread.

    def on_loaded(self, info: PolicyInfo) -> None:
        """Latch the contract and tell the node."""
        self._latch(info)
        self._on_event(
            self, 'loaded', f'{info.family}, {info.horizon} x {info.action_dim} actions'
        )

    def _latch(self, info: PolicyInfo) -> None:
        self._info = info
        self._outputs.contract(
            {'parameters': self._values, 'model': asdict(info), 'robot': asdict(self.contract)}
        )

    def _change_policy(self, policy: Policy) -> None:
        policy.set_budget(policy_options(self._values)['budget'])
        self._latch(policy.info)
        self._on_event(self, 'changed', '')

    def on_failed(self, text: str) -> None:
        """Tell the node, which cleans up."""
        self._on_event(self, 'failed', text)

    def on_chunk(self, chunk: ActionChunk) -> None:
        """Publish a chunk and move by it."""
        self._control.take(chunk)

    def on_token(self, delta: TokenDelta) -> None:
        """Publish a word."""
        self._outputs.token(delta)

    def on_dropped(self, reason: str, text: str) -> None:
        """Count a frame that the policy did not take."""
        self._drops.add(reason, 'frame', text)

    def _make_policy(self, progress: Progress) -> Policy:
        from oxygen_ros.policy import Policy, PolicyOptions

        return Policy.from_checkpoint(
            str(self._values['checkpoint']),
            PolicyOptions(**policy_options(self._values)),
            clock=self._now_ns,
            progress=progress,
        )

    def _now_ns(self) -> int:
        return self._node.get_clock().now().nanoseconds


def _checked(
    values: Mapping[str, Value], resolve: Callable[[str], str]
) -> tuple[Contract, list[str]]:
    """The contract if it fits the checkpoint, and what is worth a line in the log."""
    contract = load_contract(str(values['robot']))
    refuse_shared_topics(contract, resolve)
    if not values['checkpoint']:
        raise OxygenError('checkpoint is empty: set it to the folder of a checkpoint')
    findings = preflight(values, contract)
    refuse_misfits(findings)
    return contract, notes_of(findings)


def _warn(node: Node, text: str) -> None:
    node.get_logger().warning(text)

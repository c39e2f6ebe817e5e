"""Everything that lives between configure and cleanup, released in one place."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from rclpy.node import Node

from oxygen_ros.ros.action_stream import ActionStream
from oxygen_ros.ros.contract import Contract, load_contract
from oxygen_ros.ros.diagnostics import Drops, Rates
from oxygen_ros.ros.inputs import Inputs
from oxygen_ros.ros.joints import JointMap
from oxygen_ros.ros.observation_buffer import InputState, ObservationBuffer
from oxygen_ros.ros.outputs import Outputs
from oxygen_ros.ros.parameters import Value, number, policy_options, texts
from oxygen_ros.ros.preflight import notes_of, preflight, refuse_misfits
from oxygen_ros.ros.worker import Progress, Snapshot, Worker
from oxygen_ros.types import ActionChunk, OxygenError, PolicyInfo, TokenDelta

if TYPE_CHECKING:
    from oxygen_ros.policy import Policy

Event = Callable[['Session', str, str], None]


class Session:
    """One configuration: contract, worker, inputs, outputs and the action stream.

    Construction checks everything that needs no weights and then begins to load them on the
    worker's thread; on_event(session, 'loaded' | 'failed', text) tells how that ended, from
    that thread. Raises OxygenError.
    """

    def __init__(self, node: Node, values: Mapping[str, Value], on_event: Event) -> None:
        self._node = node
        self._values = values
        self._on_event = on_event
        self.contract, notes = _checked(values)
        for note in notes:
            node.get_logger().info(note)
        self.rates = Rates()
        self._drops = Drops(lambda text: _warn(node, text))
        self._buffer = ObservationBuffer(self.contract)
        self._buffer.set_default_instruction(str(values['default_instruction']))
        self._action_units = JointMap(self.contract.actions.joints)
        self._stale_s = 0.0  # age of the last chunk that had run out when it came
        self._info: PolicyInfo | None = None
        self._stream: ActionStream | None = None
        self._worker = Worker(
            self._make_policy,
            self,
            idle_period_s=number(values, 'idle_step_period_ms') / 1e3,
            max_commands=2 * int(number(values, 'max_queue')),
        )
        self._outputs = Outputs(
            node, self.contract.actions, texts(values, 'language_tasks'), self.rates, self._drops
        )
        self._inputs = Inputs(
            node, self.contract, self._buffer, self._worker, self._outputs, self._drops
        )
        self._worker.start()

    @property
    def active(self) -> bool:
        """True between activate and deactivate."""
        return self._stream is not None

    @property
    def snapshot(self) -> Snapshot:
        """The worker's state and counters."""
        return self._worker.snapshot

    @property
    def effective(self) -> Mapping[str, str]:
        """Every option as it really is, once loaded."""
        return self._info.effective if self._info else {}

    @property
    def missed_ticks(self) -> int:
        """Ticks of the action stream that came too late, since activation."""
        return self._stream.missed_ticks if self._stream else 0

    @property
    def stream_state(self) -> str:
        """What the action stream does, in words; empty while not active."""
        return self._stream.state if self._stream else ''

    @property
    def overhead_ms(self) -> dict[str, float]:
        """Percentiles of what the node adds around the engine, per answered frame."""
        return self._worker.overhead_ms.percentiles()

    def images(self) -> dict[str, int]:
        """How many images became part of observations, and how many wait for the next."""
        return {'used': self._buffer.used, 'held': self._buffer.held()}

    def inputs(self) -> list[InputState]:
        """Cameras and joint state; empty while not active."""
        return self._buffer.inputs(self._now_ns()) if self._stream else []

    def activate(self) -> None:
        """Begin to serve. Raises OxygenError while the weights are not loaded."""
        snapshot = self.snapshot
        if snapshot.state != 'ready':
            raise OxygenError(
                f'the node is {snapshot.state} ({snapshot.detail}): try '
                "again when ~/status says 'inactive'"
            )
        actions = self.contract.actions
        self._buffer.reset()
        self._stream = ActionStream(
            number(self._values, 'action_rate_hz'),
            actions.step_period_s,
            actions.valid_for_s,
            actions.when_expired == 'hold',
            self._now_ns,
            self._outputs.step,
        )
        self._stream.start()
        self._inputs.open()

    def change(self, values: Mapping[str, Value]) -> None:
        """Take over the parameters that may change at any time."""
        self._values = values
        self._buffer.set_default_instruction(str(values['default_instruction']))
        self._worker.change(number(values, 'idle_step_period_ms') / 1e3, self._change_policy)

    def deactivate(self) -> None:
        """Stop to serve: no more frames or actions, and all language is cancelled."""
        self._inputs.close_open()
        stream, self._stream = self._stream, None
        if stream:
            stream.stop()
        self._worker.reset()

    def reset(self) -> None:
        """New episode."""
        self._buffer.reset()
        if self._stream:
            self._stream.clear()
        self._worker.reset()

    def close(self, timeout_s: float) -> bool:
        """Release everything; False if the worker is still inside a step after timeout_s."""
        self._inputs.close()
        stream, self._stream = self._stream, None
        if stream:
            stream.stop()
        stopped = self._worker.stop(timeout_s)
        self._outputs.close()
        return stopped

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
        snapshot = self.snapshot
        if snapshot.state != 'ready':
            return snapshot.state, snapshot.detail
        if self._stream is None:
            return 'inactive', 'configured: activate to serve'
        waiting = self._buffer.waiting_for(self._now_ns())
        if waiting:
            return 'waiting', '; '.join(waiting)
        if self._stale_s:
            return 'serving', _stale_text(self._stale_s, self.contract.actions.valid_for_s)
        return 'serving', '' if self._stream.state == 'streaming' else self._stream.state

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

    def on_failed(self, text: str) -> None:
        """Tell the node, which cleans up."""
        self._on_event(self, 'failed', text)

    def on_chunk(self, chunk: ActionChunk) -> None:
        """Publish a chunk and let the stream use it; a non-finite one is refused whole."""
        chunk = self._action_units.chunk_to_robot(chunk)
        stream = self._stream
        if stream is None:
            self._drops.add('chunk_inactive')
        elif not np.isfinite(chunk.actions).all():
            self._drops.add(
                'chunk_not_finite',
                '~/action_chunk',
                f'actions of frame {chunk.frame} are not all finite numbers',
            )
        else:
            self._outputs.chunk(chunk)
            self._note_stale(stream.offer(chunk) / 1e9)

    def on_token(self, delta: TokenDelta) -> None:
        """Publish a word."""
        self._outputs.token(delta)

    def on_dropped(self, reason: str, text: str) -> None:
        """Count a frame that the policy did not take."""
        self._drops.add(reason, 'frame', text)

    def _note_stale(self, age_s: float) -> None:
        """Say once that chunks come too late to be used; age_s 0 ends it."""
        if age_s and not self._stale_s:
            _warn(self._node, _stale_text(age_s, self.contract.actions.valid_for_s))
        self._stale_s = age_s

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


def _checked(values: Mapping[str, Value]) -> tuple[Contract, list[str]]:
    """The contract if it fits the checkpoint, and what is worth a line in the log."""
    contract = load_contract(str(values['robot']))
    if not values['checkpoint']:
        raise OxygenError('checkpoint is empty: set it to the folder of a checkpoint')
    findings = preflight(values, contract)
    refuse_misfits(findings)
    return contract, notes_of(findings)


def _warn(node: Node, text: str) -> None:
    node.get_logger().warning(text)


def _stale_text(age_s: float, valid_s: float) -> str:
    age = f'{age_s / 86400:.0f} days' if age_s > 2 * 86400 else f'{age_s:.2f} s'
    hint = (
        ': set use_sim_time if a bag is played' if age_s > 60 or not math.isfinite(age_s) else ''
    )
    return (
        f'chunks are {age} old by their image stamp when they are ready, and valid for '
        f'{valid_s:g} s: no action is published{hint}'
    )

"""Replays a bag in real time through the real node: its own process, Fast DDS and use_sim_time.

On a ROS domain of its own, so that nothing of it reaches a robot that happens to be on.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import rclpy
import yaml
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

from oxygen_ros.demo.processes import Processes, ros_environment
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.live_listener import Listener
from oxygen_ros.replay.live_player import Player, header_stamp_ns
from oxygen_ros.replay.measured import Work
from oxygen_ros.replay.outcome import Outcome
from oxygen_ros.replay.recorded import RecordedMotion, Said
from oxygen_ros.replay.sources import Sources
from oxygen_ros.replay.watch import Watch
from oxygen_ros.ros.contract import Contract
from oxygen_ros.types import OxygenError

POLL_S = 0.02
STATUS_PERIOD_S = 0.2
SETTLE_S = 0.5  # for the last messages to arrive
WORDS_S = 10.0  # that pending answers get when the bag has ended


def replay_live(
    bag: Bag,
    sources: Sources,
    contract: Contract,
    values: Mapping[str, Any],
    hidden: bool | None,
) -> Outcome:
    """Start the node, play the bag to it, and collect what it answers. Raises OxygenError."""
    environment = ros_environment()
    with (
        tempfile.TemporaryDirectory() as folder,
        _environment(environment),
        Processes(Path(folder), environment) as processes,
        _ros_node() as node,
    ):
        params = Path(folder) / 'params.yaml'
        params.write_text(yaml.safe_dump({'/**': {'ros__parameters': _parameters(values)}}))
        processes.start('node', 'oxygen_ros.ros.node', '--ros-args', '--params-file', str(params))
        session = _Session(bag, sources, contract, values, node, processes)
        session.wait_until_served()
        return session.run(hidden)


class _Session:
    """One bag and one node process."""

    def __init__(
        self,
        bag: Bag,
        sources: Sources,
        contract: Contract,
        values: Mapping[str, Any],
        node: Node,
        processes: Processes,
    ) -> None:
        self._bag = bag
        self._sources = sources
        self._contract = contract
        self._processes = processes
        self._motion = RecordedMotion(
            contract.actions.names, round(contract.timing.state_max_age_ms * 1e6)
        )
        self._said = Said(contract.actions.names)
        self._watch = Watch(sources.by_topic, contract, bag.start_ns)
        self._player = Player(node, bag, sources.inputs, contract)
        self._listener = Listener(
            node,
            contract,
            self._player,
            self._motion,
            values['language_tasks'],
            values['action_rate_hz'],
        )
        self._stop = threading.Event()

    def wait_until_served(self) -> None:
        """Until the weights are loaded and every input has a reader. Raises OxygenError."""
        while not (self._listener.state and self._player.heard()):
            self._check_node()
            if self._listener.status and self._listener.status.state == 'failed':
                raise OxygenError(f'the node {self._listener.state}')
            self._player.show_time()
            time.sleep(POLL_S)

    def run(self, hidden: bool | None) -> Outcome:
        """Play all of it and wait for the answers that are pending."""
        problem = ''
        self._read_said()
        try:
            for topic, time_ns, data in self._player.play(self._stop, hidden):
                self._see(topic, time_ns, data)
            self._wait(lambda: not self._listener.open_answers(), WORDS_S)
            self._wait(lambda: False, SETTLE_S)
        except (OxygenError, KeyboardInterrupt) as error:
            if not self._listener.frames:
                raise
            problem = str(error) or 'interrupted'
        return self._outcome(problem)

    def _read_said(self) -> None:
        """What was answered when the bag was recorded; before it is played, to have the time."""
        for topic in (t for t in self._sources.by_topic if t not in self._sources.inputs):
            chunks = self._sources.by_topic[topic].kind == 'said_chunk'
            for message in self._bag.messages([topic]):
                if message.value is not None:
                    (self._said.add_chunk if chunks else self._said.add_token)(message.value)

    def _see(self, topic: str, time_ns: int, data: bytes) -> None:
        """Note what was just published."""
        source = self._sources.by_topic[topic]
        stamped = source.slot or source.kind == 'state'
        self._watch.see(topic, header_stamp_ns(data) if stamped else 0, time_ns)
        if source.kind in ('state', 'request'):
            value = self._bag.decoded(topic, data)
            if value is None:
                self._watch.unusable(topic)
            elif source.kind == 'state':
                with self._listener.lock:
                    self._motion.add(value, time_ns)
            else:
                self._listener.ask(value)
        self._check_node()

    def _wait(self, done: Callable[[], bool], limit_s: float) -> None:
        """Let the bag's time pass until something is done, or the limit."""
        end_s = time.monotonic() + limit_s
        while not done() and time.monotonic() < end_s:
            self._player.wait_until(self._player.now_ns + round(POLL_S * 1e9), self._stop)
            self._check_node()

    def _check_node(self) -> None:
        if problem := self._processes.ended():
            raise OxygenError(f'the {problem}')

    def _outcome(self, problem: str) -> Outcome:
        heard = self._listener
        with heard.lock:
            acts = [
                Work('act', f.chunk.began_ns, f.chunk.ended_ns, 0) for f in heard.frames if f.chunk
            ]
            heard.measured.work = sorted([*acts, *heard.words()], key=lambda work: work.began_ns)
            played_s = (self._player.now_ns - self._bag.start_ns) / 1e9
            heard.measured.wall_s = heard.measured.busy_s = played_s
            heard.streamed.limited = int(heard.status.steps_limited)
            model = dict(heard.contract['model'])
            return Outcome(
                timeline='live',
                effective=model.pop('effective'),
                model=model,
                frames=heard.frames,
                answers=list(heard.answers.values()),
                motion=self._motion,
                said=self._said,
                streamed=heard.streamed,
                measured=heard.measured,
                seams=heard.chunks.seams,
                chunk_gaps=heard.chunks.gaps,
                dropped=heard.dropped(),
                engine=heard.engine(),
                inputs=self._watch.rows(),
                warnings=self._watch.notes(),
                problem=problem,
            )


def _parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the replay, of a node that serves by itself on the bag's time."""
    fixed = {'autostart': True, 'use_sim_time': True, 'status_period_s': STATUS_PERIOD_S}
    absolute = {'checkpoint': str(Path(values['checkpoint']).expanduser().resolve())}
    return {**values, **absolute, **fixed}


@contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    """This process on the node's ROS domain, and back."""
    before = dict(os.environ)
    os.environ.update(changed)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _ros_node() -> Iterator[Node]:
    """A node that spins on a thread of its own, in a context of its own."""
    context = rclpy.Context()
    rclpy.init(args=[], context=context)
    node = rclpy.create_node('oxygen_replay', context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def spin() -> None:
        with suppress(ExternalShutdownException):
            executor.spin()

    thread = threading.Thread(target=spin, name='executor', daemon=True)
    thread.start()
    try:
        yield node
    finally:
        context.try_shutdown()
        thread.join()
        node.destroy_node()

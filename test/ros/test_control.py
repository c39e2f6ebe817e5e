"""Whatever ends motion is the last word, at whatever moment it comes. Real topics, no engine."""

import threading
import time
from collections import Counter

import numpy as np
import pytest
import rclpy
from robot_peer import TRAJECTORY, write_contract
from ros_harness import JOINTS, poll

from oxygen_ros.ros.contract import load_contract
from oxygen_ros.ros.diagnostics import Drops, Rates
from oxygen_ros.ros.motion.control import Control, _Latency
from oxygen_ros.ros.outputs import Outputs
from oxygen_ros.types import ActionChunk, Observation

ENDS = ('stop', 'clear', 'halt', 'end')


class Published(Outputs):
    """What is published, in this order; on_chunk is called when a chunk has been."""

    def __init__(self, *args):
        super().__init__(*args)
        self.chunks, self.steps, self.trajectories = [], [], []
        self.on_chunk = lambda: None

    def chunk(self, chunk):
        super().chunk(chunk)
        self.chunks.append(chunk)
        self.on_chunk()

    def step(self, step):
        super().step(step)
        self.steps.append(step)

    def trajectory(self, start_ns, rows, times_ns):
        super().trajectory(start_ns, rows, times_ns)
        self.trajectories.append(np.array(rows))


class Rig:
    """A control with everything around it but the engine.

    ticks: that the stream began so far; each waits until go is set, and waits says so.
    """

    def __init__(self, folder, **actions):
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node('control', context=self.context)
        self.contract = load_contract(
            write_contract(folder, trajectory_topic=TRAJECTORY, valid_for_s=100.0, **actions)
        )
        self.ticks, self.outdated, self.go = 0, False, threading.Event()
        self.waits = False
        self.go.set()
        self.drops = Drops(self.node.get_logger().warning)
        self.out = Published(self.node, self.contract.actions, (), Rates(), self.drops)
        self.control = Control(
            self.node,
            self.contract,
            70.0,
            self.out,
            self.drops,
            self.now_ns,
            lambda: self.outdated,
        )
        self.control.start()

    def now_ns(self):
        if threading.current_thread().name == 'oxygen_actions':
            self.ticks += 1
            self.waits = not self.go.is_set()
            self.go.wait()
        return time.time_ns()

    def take(self, first=0.0, frame=0):
        """A chunk of 40 rows that begin at a value and rise."""
        rows = np.full((40, len(JOINTS)), first) + np.arange(40)[:, None]
        now = time.time_ns()
        self.control.take(ActionChunk(rows.astype(np.float32), frame, now, now, now))

    def do(self, what):
        getattr(self.control, what)(*(['by a test'] if what == 'stop' else []))

    def move(self):
        self.take()
        poll(lambda: len(self.out.steps) > 3, 20, lambda: 'steps')

    def close(self):
        self.control.end()
        self.out.close()
        self.context.try_shutdown()
        self.node.destroy_node()


@pytest.fixture
def rig(tmp_path):
    rigs = []

    def make(**options):
        rigs.append(Rig(tmp_path, **options))
        return rigs[-1]

    yield make
    for made in rigs:
        made.close()


@pytest.mark.parametrize('what', ENDS)
def test_c20_an_end_between_a_chunk_and_its_trajectory_is_the_last_word(rig, what):
    rig = rig()
    rig.move()
    ended = threading.Thread(target=rig.do, args=[what])

    def end():
        ended.start()
        ended.join(1)  # it may wait for the chunk, but must not be overtaken by it

    rig.out.on_chunk = end
    rig.take(first=1000.0)
    ended.join(20)
    steps = len(rig.out.steps)
    assert len(rig.out.trajectories[-1]) == 1
    ticks = rig.ticks
    poll(lambda: what == 'end' or rig.ticks > ticks + 3, 20, lambda: 'ticks')
    assert all(step.hold for step in rig.out.steps[steps:])


@pytest.mark.parametrize('silence', [True, False])
@pytest.mark.parametrize('what', ENDS)
def test_the_trajectory_ends_at_the_last_step_whatever_the_stream_does(rig, what, silence):
    rig = rig(when_stopped='silence' if silence else 'hold')
    rig.move()
    rig.do(what)
    (held,) = rig.out.trajectories[-1]
    moved = [step for step in rig.out.steps if not step.hold]
    np.testing.assert_array_equal(held, moved[-1].values)


def test_a_stop_between_a_tick_and_its_step_is_the_last_word(rig):
    rig = rig()
    stopped = threading.Thread(target=rig.do, args=['stop'])
    step = rig.out._step

    class Publisher:
        """The real one, before which a stop comes."""

        def publish(self, message):
            if not stopped.ident and not message.hold:
                stopped.start()
                poll(lambda: rig.control.stopped, 20, lambda: 'the stop')
                stopped.join(0.3)
                rig.returned = not stopped.is_alive()
            step.publish(message)

    rig.out._step = Publisher()
    rig.take()
    poll(lambda: hasattr(rig, 'returned'), 20, lambda: 'a step')
    rig.out._step = step
    assert not rig.returned, 'the stop returned before what was decided earlier was published'
    stopped.join(20)


def test_before_the_first_step_the_trajectory_ends_where_the_robot_was_seen(rig):
    rig = rig()
    rig.go.clear()
    poll(lambda: rig.waits, 20, lambda: 'a tick that waits')
    state = np.linspace(0.1, 0.7, len(JOINTS)).astype(np.float32)
    rig.control.overlap(Observation({}, state, 'go on', time.time_ns()))
    rig.take(first=5.0)
    assert len(rig.out.trajectories) == 1
    stopped = threading.Thread(target=rig.do, args=['stop'])
    stopped.start()  # it waits for the tick, but not before it has spoken
    poll(lambda: len(rig.out.trajectories) == 2, 20, lambda: 'the hold')
    rig.go.set()
    stopped.join(20)
    np.testing.assert_allclose(rig.out.trajectories[-1], state[None])
    assert not rig.out.steps


def test_what_began_before_a_stop_does_not_move_after_a_quick_resume(rig):
    rig = rig()
    rig.move()
    rig.control.stop('by a test')
    rig.take(first=1000.0)
    rig.outdated = True  # as the worker says until its next step
    rig.control.resume()
    rig.take(first=1000.0)
    ticks = rig.ticks
    poll(lambda: rig.ticks > ticks + 3, 20, lambda: 'ticks')
    assert max(step.values.max() for step in rig.out.steps) < 1000
    assert rig.drops.counts() == Counter(chunk_stopped=1, chunk_outdated=1)
    rig.outdated = False
    rig.take(first=2000.0, frame=2)
    poll(lambda: rig.out.steps[-1].chunk.frame == 2, 20, lambda: 'motion')


def test_the_first_chunk_after_a_start_does_not_count_as_latency():
    latency = _Latency()
    latency.add(700)
    assert latency.longest_ns() == 0
    for value in (20, 50, 30):
        latency.add(value)
    assert latency.longest_ns() == 50
    latency.clear()
    latency.add(700)
    assert latency.longest_ns() == 0

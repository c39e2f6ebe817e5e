"""The thread that ticks: its schedule, and its last step."""

import threading
import time

import numpy as np

from oxygen_ros.ros.action_stream import ActionStream
from oxygen_ros.ros.contract import Actions
from oxygen_ros.ros.joints import Joint
from oxygen_ros.ros.motion.mover import Mover
from oxygen_ros.types import ActionChunk

RATE_HZ = 100.0


def stream(publish, said=lambda text: None, **options):
    actions = Actions((Joint('a'), Joint('b')), 0.05, 100.0, **options)
    return ActionStream(RATE_HZ, Mover(actions, 1 / RATE_HZ), time.time_ns, publish, said)


def offer(actions):
    now = time.time_ns()
    rows = np.arange(8000, dtype=np.float32).reshape(4000, 2)
    assert actions.mover.offer(ActionChunk(rows, 0, now, now, now), now)


def wait(predicate):
    deadline = time.monotonic() + 30
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_late_tick_is_left_out_and_counted_and_never_made_up_for():
    published, blocked = [], threading.Event()

    def publish(step):
        published.append(time.monotonic())
        if len(published) == 3:
            time.sleep(0.1)  # ten periods
            blocked.set()

    actions = stream(publish)
    offer(actions)
    actions.start()
    assert blocked.wait(30)
    after = len(published)
    wait(lambda: len(published) >= after + 5)
    actions.stop()
    assert actions.missed_ticks >= 9
    gaps = np.diff(published[after:-1])  # the last one is the safe step, published at once
    assert gaps.min() > 0.001  # no burst: ten owed ticks would come within microseconds


def test_the_last_step_is_a_hold_of_what_was_published_before():
    published = []
    actions = stream(published.append)
    offer(actions)
    actions.start()
    wait(lambda: len(published) > 5)
    actions.stop()
    *_, before, last = published
    assert last.hold and not before.hold
    assert list(last.values) == list(before.values)


def test_by_contract_there_is_no_last_step():
    published = []
    actions = stream(published.append, when_stopped='silence')
    offer(actions)
    actions.start()
    wait(lambda: len(published) > 5)
    actions.stop()
    assert not any(step.hold for step in published)


def test_whether_it_has_real_time_priority_is_said_once():
    said = []
    actions = stream(lambda step: None, said.append)
    actions.start()
    wait(lambda: said)
    actions.stop()
    assert len(said) == 1 and 'real-time priority' in said[0]

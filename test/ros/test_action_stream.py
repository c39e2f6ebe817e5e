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


def stream(publish, said=lambda text: None, failed=lambda text: None, **options):
    actions = Actions((Joint('a'), Joint('b')), 0.05, 100.0, **options)
    mover = Mover(actions, 1 / RATE_HZ)
    return ActionStream(RATE_HZ, mover, time.time_ns, publish, said, failed)


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
    published, began = [], time.monotonic()

    def publish(step):
        published.append(time.monotonic())
        if len(published) == 3:
            time.sleep(0.1)  # ten periods

    actions = stream(publish)
    offer(actions)
    actions.start()
    wait(lambda: len(published) >= 30)
    actions.stop()
    assert actions.missed_ticks >= 9
    *ticks, _ = published  # the last one is the safe step, published at once
    # However late the machine was: what was published and what was missed fill the time.
    took_s = time.monotonic() - began
    assert len(ticks) + actions.missed_ticks <= took_s * RATE_HZ + 2


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


def test_a_step_that_raises_is_told_and_the_next_one_comes():
    published, told = [], []

    def publish(step):
        published.append(step)
        if len(published) in (3, 4):
            raise RuntimeError('no room in the history')

    actions = stream(publish, failed=told.append)
    offer(actions)
    actions.start()
    wait(lambda: len(published) > 10)
    actions.stop()
    assert len(told) == 2 and all('no room in the history' in text for text in told)


def test_a_stream_that_makes_too_few_steps_or_has_ended_says_so():
    go = threading.Event()
    actions = stream(lambda step: go.wait())
    offer(actions)
    actions.start()
    wait(lambda: 'of 100 ticks per s' in actions.problem())
    go.set()
    wait(lambda: not actions.problem())
    actions.stop()
    assert 'has ended' in actions.problem()


def test_whether_it_has_real_time_priority_is_said_once():
    said = []
    actions = stream(lambda step: None, said.append)
    actions.start()
    wait(lambda: said)
    actions.stop()
    assert len(said) == 1 and 'real-time priority' in said[0]

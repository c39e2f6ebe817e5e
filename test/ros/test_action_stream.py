"""Which row is due when, and the thread that publishes it."""

import threading
import time

import numpy as np
import pytest

from oxygen_ros.ros.action_stream import ActionStream, due_row
from oxygen_ros.types import ActionChunk

MS = 1_000_000


def chunk(stamp_ns, frame=0, horizon=4):
    actions = np.arange(horizon * 2, dtype=np.float32).reshape(horizon, 2)
    return ActionChunk(actions, frame, stamp_ns, stamp_ns, stamp_ns)


class Clock:
    def __init__(self):
        self.ns = 1_000 * MS

    def __call__(self):
        return self.ns


def stream(clock, hold=True, publish=lambda step: None, rate_hz=100.0):
    return ActionStream(rate_hz, 0.05, 0.2, hold, clock, publish)


@pytest.mark.parametrize(
    ('age_ms', 'valid_ms', 'expected'),
    [
        (-10, 200, (0, False)),  # a stamp from the future
        (0, 200, (0, False)),
        (49.9, 200, (0, False)),
        (50, 200, (1, False)),
        (199.9, 200, (3, False)),
        (200, 200, (3, True)),  # run out
        (10_000, 200, (3, True)),
        (120, 100, (1, True)),  # valid for less than its rows: row 1 is the last that counts
        (200, 400, (3, True)),  # valid for longer than its rows
    ],
)
def test_due_row(age_ms, valid_ms, expected):
    assert due_row(round(age_ms * MS), 50 * MS, valid_ms * MS, 4) == expected


def test_a_newer_chunk_replaces_by_time_and_not_from_its_beginning():
    clock = Clock()
    actions = stream(clock)
    assert actions.due() is None
    assert actions.offer(chunk(clock.ns, frame=1)) == 0
    clock.ns += 120 * MS
    assert (actions.due().chunk.frame, actions.due().index) == (1, 2)
    assert actions.offer(chunk(clock.ns - 60 * MS, frame=2)) == 0
    assert (actions.due().chunk.frame, actions.due().index) == (2, 1)


def test_a_chunk_that_has_run_out_when_it_comes_is_refused_with_its_age():
    clock = Clock()
    actions = stream(clock)
    assert actions.offer(chunk(clock.ns - 300 * MS)) == 300 * MS
    assert actions.due() is None and actions.state == 'no actions yet'


@pytest.mark.parametrize('hold', [True, False])
def test_when_the_chunk_runs_out_the_contract_decides(hold):
    clock = Clock()
    actions = stream(clock, hold)
    actions.offer(chunk(clock.ns))
    assert actions.due() and actions.state == 'streaming'
    clock.ns += 500 * MS
    step = actions.due()
    assert (step is not None) == hold
    assert actions.state.startswith('holding' if hold else 'silent')
    if hold:
        assert step.hold and step.index == 3
    actions.clear()
    assert actions.due() is None


def test_a_late_tick_is_left_out_and_counted_and_never_made_up_for():
    clock, published, blocked = Clock(), [], threading.Event()

    def publish(step):
        published.append(time.monotonic())
        if len(published) == 3:
            time.sleep(0.1)  # ten periods
            blocked.set()

    actions = stream(clock, publish=publish)
    actions.offer(chunk(clock.ns))
    actions.start()
    assert blocked.wait(30)
    after = len(published)
    deadline = time.monotonic() + 30
    while len(published) < after + 5:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    actions.stop()
    assert actions.missed_ticks >= 9
    gaps = np.diff(published[after:])
    assert gaps.min() > 0.001  # no burst: ten owed ticks would come within microseconds

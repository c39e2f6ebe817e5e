"""Chunks joined in time, and what is published when nothing is left of them. Needs no rclpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.ros.contract import Actions
from oxygen_ros.ros.joints import Joint
from oxygen_ros.ros.motion.mover import Mover
from oxygen_ros.ros.motion.plan import due_row
from oxygen_ros.types import ActionChunk

MS = 1_000_000
TICK = 10 * MS
STEP = 50 * MS
START = 1_000_000 * MS


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
    assert due_row(round(age_ms * MS), STEP, valid_ms * MS, 4) == expected


class Robot:
    """A mover with its clock; keeps every step that was published."""

    def __init__(self, limits=None, **options):
        options = {'step_period_s': 0.05, 'valid_for_s': 1.0, **options}
        joints = (Joint('a', **(limits or {})), Joint('b'))
        self.mover = Mover(Actions(joints, **options), TICK / 1e9)
        self.now = self.steady = START
        self.steps = []

    def run(self, ms):
        """Tick for a while; the last step."""
        for _ in range(round(ms * MS / TICK)):
            self.steps.append(self.mover.tick(self.now, self.steady))
            self.now += TICK
            self.steady += TICK
        return self.steps[-1]

    def offer(self, rows, stamp_ns, frame=0):
        rows = np.asarray(rows, np.float32)
        return self.mover.offer(ActionChunk(rows, frame, stamp_ns, 0, 0), self.now)

    def values(self):
        return np.array([step.values[0] for step in self.steps if step is not None])


def ramp(stamp_ns, horizon=20, slope=1.0):
    """Rows of a line that is the same whenever it was looked at: slope per s since START."""
    times = stamp_ns + np.arange(horizon) * STEP
    line = slope * (times - START) / 1e9
    return np.stack([line, np.zeros(horizon)], axis=1)


def test_c28_a_first_chunk_after_700_ms_begins_with_row_0_and_later_ones_are_aligned():
    robot = Robot(valid_for_s=2.0)
    robot.run(700)
    assert robot.steps == [None] * 70
    robot.offer(ramp(START), START)
    robot.run(100)
    first = robot.steps[70]
    assert (first.index, first.hold) == (0, False)
    assert robot.steps[-1].index == 1
    # The next frame is from the time of row 1; 50 ms of it are published when its chunk comes.
    stamp = robot.now
    robot.run(50)
    robot.offer(ramp(stamp), stamp, frame=1)
    assert (robot.run(10).chunk.frame, robot.steps[-1].index) == (1, 1)


def test_rows_of_the_time_in_which_the_robot_stood_are_not_skipped():
    robot = Robot(valid_for_s=0.2)
    robot.offer(ramp(START, 4), START)
    assert robot.run(500).hold
    stamp = robot.now - 100 * MS  # taken while holding
    robot.offer(ramp(stamp), stamp, frame=1)
    assert (robot.run(10).index, robot.steps[-1].hold) == (0, False)


def test_only_the_part_that_was_published_since_the_observation_is_skipped():
    robot = Robot(valid_for_s=1.0)
    robot.offer(ramp(START, 4), START)
    robot.run(310)  # its rows end after 200 ms
    stamp = START + 100 * MS
    robot.offer(ramp(stamp), stamp, frame=1)  # 100 ms published since, 110 ms stood still
    assert (robot.run(20).index, robot.steps[-1].hold) == (2, False)


def test_a_chunk_that_has_run_out_when_it_comes_is_not_used():
    robot = Robot(valid_for_s=0.2)
    assert robot.offer(ramp(START), START - 300 * MS) is None
    assert robot.run(10) is None and robot.mover.state == 'no actions yet'


def test_a_stamp_from_the_future_does_not_outlive_its_validity():
    robot = Robot(valid_for_s=0.2)
    robot.offer(ramp(START), START + 5_000 * MS)
    assert robot.run(10).index == 0
    assert robot.run(300).hold


@pytest.mark.parametrize('interpolate', [False, True])
@pytest.mark.parametrize('merge', ['replace', 'blend', 'average', 'realtime'])
@pytest.mark.parametrize('delay_ms', [60, 90, 130])
def test_c30_a_line_seen_again_and_again_has_no_jump_at_its_seams(merge, delay_ms, interpolate):
    robot = Robot(merge=merge, interpolate=interpolate)
    robot.offer(ramp(robot.now), robot.now)
    for frame in range(1, 12):
        stamp = robot.now
        robot.run(delay_ms)
        robot.offer(ramp(stamp), stamp, frame)
        row = 1.0 * STEP / 1e9
        assert robot.mover.seam.jump <= row + 1e-4
    assert not any(step.hold for step in robot.steps)
    largest = np.abs(np.diff(robot.values())).max()
    assert largest <= (TICK if interpolate else STEP) / 1e9 + 1e-4
    assert robot.steps[-1].chunk.frame >= 10
    # It is on the line, not behind it: alignment is by time and not by arrival.
    due = (robot.steps[-1].due_ns - START) / 1e9
    assert due - STEP / 1e9 - 1e-4 <= robot.values()[-1] <= due + 1e-4


def jumps_after_a_change(merge, **options):
    """Largest change between two steps when the second chunk wants something else."""
    robot = Robot(merge=merge, **options)
    robot.offer(np.zeros((20, 2)), START)
    robot.run(100)
    robot.offer(np.ones((20, 2)), robot.now)
    robot.run(500)
    return robot, np.abs(np.diff(robot.values())).max()


def test_merges_differ_as_documented():
    robot, jump = jumps_after_a_change('replace')
    assert jump == 1.0 and robot.mover.seam.jump == 1.0 and robot.mover.seam.joint == 'a'
    robot, jump = jumps_after_a_change('blend', blend_steps=4)
    assert jump == pytest.approx(0.2) and robot.values()[-1] == 1.0
    robot, jump = jumps_after_a_change('average')
    assert robot.values()[-1] == pytest.approx(1 / (1 + np.exp(0.01)))
    assert robot.mover.seam.jump == pytest.approx(jump)


@pytest.mark.parametrize(
    ('how', 'state'),
    [('hold', 'holding'), ('ramp', 'holding'), ('silence', 'silent')],
)
def test_c34_when_the_chunk_has_run_out_the_contract_decides(how, state):
    robot = Robot(when_expired=how, valid_for_s=0.4, ramp_s=0.2, interpolate=True)
    robot.offer(ramp(START), START)
    robot.run(400)
    assert robot.mover.state == 'streaming'
    step = robot.run(600)
    assert robot.mover.state == f'{state}: the last chunk has run out'
    if how == 'silence':
        assert step is None
        return
    assert step.hold and step.index == 7
    assert step.values[0] == pytest.approx(0.35 + (0.1 if how == 'ramp' else 0.0))
    if how == 'ramp':
        speed = np.diff(robot.values()[40:62]) / (TICK / 1e9)
        assert 0.9 < speed[0] <= 1.0 and (np.diff(speed) <= 1e-9).all() and abs(speed[-1]) < 1e-9


def test_a_ramp_ends_at_the_limit():
    robot = Robot({'upper': 0.4}, when_expired='ramp', valid_for_s=0.4, ramp_s=0.5)
    robot.offer(np.minimum(ramp(START), 0.4), START)
    robot.run(1500)
    assert robot.values().max() == pytest.approx(0.4)


def test_a_clock_that_stands_still_is_noticed_on_steady_time():
    robot = Robot(valid_for_s=0.2)
    robot.offer(ramp(START), START)
    robot.run(50)
    for _ in range(30):
        robot.steps.append(robot.mover.tick(robot.now, robot.steady))
        robot.steady += TICK
    assert robot.steps[-1].hold and 'clock stands still' in robot.mover.state


def test_a_clock_that_jumps_back_ends_the_chunk_and_the_next_one_counts():
    robot = Robot(valid_for_s=0.5)
    robot.offer(ramp(START), START)
    robot.run(100)
    robot.now -= 90_000 * MS
    assert robot.run(100).hold
    stamp = robot.now
    robot.offer(ramp(stamp), stamp, frame=9)
    assert (robot.run(10).chunk.frame, robot.steps[-1].hold) == (9, False)


@pytest.mark.parametrize('how', ['hold', 'silence'])
def test_a_stop_is_the_next_tick_and_lasts_until_resume(how):
    robot = Robot(when_stopped=how)
    robot.offer(ramp(START), START)
    before = robot.run(300)
    robot.mover.stop('by a test')
    step = robot.run(10)
    assert robot.offer(ramp(robot.now, slope=5.0), robot.now) is None
    assert robot.mover.state == 'stopped: by a test'
    for stopped in (step, robot.run(200)):
        assert (stopped is None) == (how == 'silence')
        assert stopped is None or (stopped.hold and (stopped.values == before.values).all())
    robot.mover.resume()
    again = robot.run(50)
    assert again is None if how == 'silence' else (again.values == before.values).all()
    stamp = robot.now
    robot.offer(ramp(stamp), stamp, frame=3)
    assert (robot.run(10).chunk.frame, robot.steps[-1].index) == (3, 0)


def test_a_stop_goes_on_to_hold_when_everything_is_forgotten():
    robot = Robot()
    robot.offer(ramp(START), START)
    before = robot.run(300)
    robot.mover.stop('by a test')
    robot.mover.clear()
    assert (robot.run(50).values == before.values).all()


@pytest.mark.parametrize('how', ['hold', 'ramp', 'silence'])
def test_when_the_plan_alone_is_dropped_the_last_step_is_held_by_contract(how):
    robot = Robot(when_expired=how)
    robot.offer(ramp(START), START)
    before = robot.run(300)
    assert (robot.mover.drop_plan() == before.values).all()
    after = robot.run(50)
    assert after is None if how == 'silence' else (after.values == before.values).all()


def test_a_clock_that_goes_back_a_little_never_repeats_rows():
    robot = Robot(valid_for_s=1.0)
    robot.offer(ramp(START), START)
    before = robot.run(300)
    robot.now -= 150 * MS
    assert (robot.run(100).values == before.values).all()


def test_after_clear_nothing_is_published_until_the_next_chunk():
    robot = Robot()
    robot.offer(ramp(START), START)
    robot.run(50)
    robot.mover.clear()
    assert robot.run(50) is None and robot.mover.last_step(robot.now) is None


def test_the_overlap_is_what_is_due_when_the_rows_of_the_new_chunk_are():
    robot = Robot(merge='realtime', interpolate=True)
    assert robot.mover.overlap(START, START) is None
    robot.offer(ramp(START), START)
    stamp = START + 130 * MS
    robot.run(160)
    rows = robot.mover.overlap(stamp, robot.now)
    # 1 s of rows began at START and 130 ms of them lie before the new one.
    assert rows.dtype == np.float32 and len(rows) == 17
    np.testing.assert_allclose(rows[:, 0], 0.13 + 0.05 * np.arange(17), atol=1e-5)


def test_rows_ahead_leave_out_what_is_past_and_keep_to_the_limits():
    robot = Robot({'max_velocity': 0.5})
    plan = robot.offer(ramp(START), START)
    robot.run(120)
    rows, times = robot.mover.rows_ahead(plan, robot.now)
    assert times[0] == START + 150 * MS and len(rows) == 17
    assert np.abs(np.diff(rows[:, 0])).max() <= 0.5 * 0.05 + 1e-9


CHUNKS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 30), st.floats(-1.0, 1.0), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(
    chunks=CHUNKS,
    merge=st.sampled_from(['replace', 'blend', 'average']),
    expired=st.sampled_from(['hold', 'ramp', 'silence']),
    interpolate=st.booleans(),
)
def test_whatever_comes_and_when_no_published_step_violates_a_limit(
    chunks, merge, expired, interpolate
):
    limits = {'lower': -1.0, 'upper': 1.0, 'max_velocity': 2.0, 'max_acceleration': 8.0}
    robot = Robot(
        limits, merge=merge, when_expired=expired, interpolate=interpolate, valid_for_s=0.4
    )
    for wait, age, value, alternate in chunks:
        robot.run(10 + 10 * wait)
        rows = np.full((10, 2), value, np.float32)
        if alternate:
            rows[::2] *= -1
        robot.offer(rows, robot.now - age * TICK)
    robot.run(800)
    for run in spans(robot.steps):
        positions = np.array([step.values[0] for step in run])
        speed = np.diff(positions) / (TICK / 1e9)
        assert np.abs(positions).max() <= 1.0 + 1e-6
        if len(speed):
            assert np.abs(speed).max() <= 2.0 * (1 + 1e-6)
            assert np.abs(np.diff(speed, prepend=0.0)).max() <= 8.0 * TICK / 1e9 * (1 + 1e-6)


def spans(steps):
    """Published steps without a silence between them."""
    run = []
    for step in [*steps, None]:
        if step is not None:
            run.append(step)
        elif run:
            yield run
            run = []

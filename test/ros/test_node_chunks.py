"""Chunks that are late, early or wrong, through the real node: what the robot is told then."""

import itertools

import numpy as np
import pytest
from robot_peer import Robot, write_contract
from ros_harness import JOINTS, NodeProcess, dropped, poll, stamp

NAME = 'oxygen_chunks'
STEP_NS, VALID_NS = 50_000_000, 500_000_000
TICK_S = 1 / 70


@pytest.fixture
def robot():
    robot = Robot(NAME)
    yield robot
    robot.close()


@pytest.fixture
def start(tmp_path, tiny_checkpoint):
    """A serving node with these faults and this contract; killed at the end."""
    processes = []

    def begin(faults, joints=None, **actions):
        processes.append(
            NodeProcess(
                tmp_path,
                node_name=NAME,
                faults=faults,
                checkpoint=str(tiny_checkpoint),
                robot=write_contract(tmp_path, joints, **actions),
                autostart=True,
                default_instruction='put the red block on the tray',
                status_period_s=0.1,
            )
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()


def test_c28_a_slow_first_chunk_begins_with_its_first_row_and_no_later_one_skips_too_much(
    start, robot
):
    start({'sleep_s': [0.7, 0.05]}, valid_for_s=2.0)
    robot.wait_for_motion()
    poll(lambda: len({s.frame for s in robot.steps()}) > 5, 90, lambda: 'five chunks')
    steps = list(itertools.takewhile(lambda step: not step.hold, list(robot.steps())))
    assert len(steps) > 20
    begin_ns = stamp(steps[0].header.stamp)
    first = steps[0]
    assert first.index == 0
    assert begin_ns - stamp(first.source_stamp) > 700_000_000
    for step in steps:
        source_ns = stamp(step.source_stamp)
        if step.frame != first.frame:
            # Skipped is what was really published since its image.
            moved_ns = stamp(step.header.stamp) - max(begin_ns, source_ns)
            assert step.index == moved_ns // STEP_NS


@pytest.mark.parametrize('merge', ['replace', 'blend', 'average'])
def test_c30_chunks_of_one_motion_are_joined_without_a_jump_at_6_to_9_ticks_of_delay(
    start, robot, merge
):
    """Each chunk is the same ramp, seen 90 to 130 ms ago."""
    slope = 1.0
    start({'slope': slope, 'sleep_s': [0.09]}, merge=merge, interpolate=True)
    robot.wait_for_motion()

    def seams():
        """Pairs of steps between two chunks whose images came while the robot moved."""
        steps, found, moving_ns = list(robot.steps()), [], 0
        for before, after in itertools.pairwise(steps):
            if after.hold or not moving_ns:  # what begins anew is late by what it stood still
                moving_ns = stamp(after.header.stamp) + VALID_NS
            elif before.frame != after.frame and stamp(before.source_stamp) > moving_ns:
                found.append((before, after))
        return found

    poll(lambda: len(seams()) >= 8, 90, lambda: f'seams, {robot.status()}')
    tick = slope * TICK_S
    for before, after in seams():
        apart_s = (stamp(after.header.stamp) - stamp(before.header.stamp)) / 1e9
        jumps = np.abs(np.subtract(after.values, before.values) - slope * apart_s)
        assert jumps.max() <= tick
    assert robot.status().seam_joint in JOINTS
    # Not of each: one after a standstill jumps by what the line went on meanwhile.
    poll(lambda: 0 <= robot.status().seam_jump <= tick, 60, lambda: f'a seam, {robot.status()}')


def test_c36_one_bad_value_refuses_its_chunk_alone_and_is_named(start, robot):
    """NaN at row 7, then ten times a joint's limit, then good ones again."""
    bad = {str(k): {'7': float('nan')} for k in range(10, 20)}
    bad |= {str(k): {'3': 20.0} for k in range(20, 30)}
    joints = {'gripper': {'lower': -2.0, 'upper': 2.0}}
    robot.on = set()
    timing = {'image_max_age_ms': 60_000, 'state_max_age_ms': 60_000}
    node = start({'values': bad, 'slope': 0.0}, joints, timing=timing)
    robot.wait_for_state('waiting')

    def until(frame):
        """Send frames until one of this number is taken; the counts of a report after it."""
        before = robot.status().frames

        def taken():
            robot.frame_all()
            return robot.status().frames > max(frame, before)

        poll(taken, 90, lambda: f'frame {frame}, {robot.status()}')

    def said(*texts):
        details = [status.detail for status in list(robot.heard[f'{NAME}/status'])]
        return any(all(text in detail for text in texts) for detail in details)

    until(8)
    assert {c.frame for c in robot.chunks()} >= set(range(3))
    until(15)
    assert said('row 7: gripper is nan, must be a finite number')
    until(25)
    assert said('row 3: gripper is 20, must be -2 to 2', 'holding: the last chunk has run out')
    until(32)
    poll(
        lambda: robot.frame_all() or robot.status().detail == '',
        90,
        lambda: f'the end of it, {robot.status()}',
    )
    counts = dropped(robot.status())
    assert (counts['chunk_not_finite'], counts['chunk_out_of_limits']) == (10, 10)
    served = {c.frame for c in robot.chunks()}
    assert served and not served & set(range(10, 30))
    assert all(np.abs(step.values).max() <= 2.0 for step in robot.steps())
    assert any(step.hold for step in robot.steps())  # the last good chunk had run out
    assert node.stop() == 0, node.log

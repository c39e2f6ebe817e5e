"""Motion as a controller sees it: the real node in its own process, three cameras at 15 Hz."""

import signal
import time

import numpy as np
import pytest
from lifecycle_msgs.srv import ChangeState
from robot_peer import THIRD, TRAJECTORY, Robot, write_contract
from ros_harness import (
    BASE,
    JOINTS,
    WRIST,
    NodeProcess,
    dropped,
    image,
    joint_state,
    jpeg,
    poll,
    stamp,
)
from std_msgs.msg import Bool

from oxygen_ros import msg

NAME = 'oxygen_motion'


@pytest.fixture(scope='module')
def robot():
    robot = Robot(NAME)
    yield robot
    robot.close()


def start(folder, checkpoint, contract, **parameters):
    return NodeProcess(
        folder,
        node_name=NAME,
        checkpoint=str(checkpoint),
        robot=contract,
        autostart=True,
        default_instruction='put the red block on the tray',
        status_period_s=0.1,
        max_new_tokens=400,
        **parameters,
    )


@pytest.fixture(scope='module')
def process(tmp_path_factory, tiny_checkpoint, robot):
    folder = tmp_path_factory.mktemp('motion')
    contract = write_contract(folder, merge='realtime', trajectory_topic=TRAJECTORY)
    node = start(folder, tiny_checkpoint, contract)
    yield node
    node.kill()


@pytest.fixture
def node(process, robot):
    """The node in motion."""
    robot.on = {BASE, WRIST, THIRD}
    robot.wait_for_motion()
    for heard in robot.heard.values():
        heard.clear()
    yield process
    assert process.alive, process.log


def held(robot, number):
    """Those of the last steps that are held, of the same row."""
    last = list(robot.steps())[-number:]
    return [s for s in last if s.hold and s.values == last[-1].values]


def test_c10_a_camera_that_stops_ends_motion_by_name_and_comes_back_by_itself(node, robot):
    robot.on = {BASE, WRIST}
    status = poll(
        lambda: robot.status() and 'holding' in robot.status().detail and robot.status(),
        60,
        lambda: f'the hold, {robot.status()}',
    )
    assert status.state == 'waiting'
    assert 'camera right_wrist_0_rgb' in status.detail
    assert 'camera base_0_rgb' not in status.detail
    since = robot.now_ns()  # a chunk of an image before may still be under way
    poll(lambda: len(held(robot, 20)) == 20, 60, lambda: 'held steps')
    assert all(stamp(chunk.header.stamp) < since for chunk in list(robot.chunks()))
    assert all(step.hold or stamp(step.source_stamp) < since for step in list(robot.steps()))
    robot.on = {BASE, WRIST, THIRD}
    robot.wait_for_motion()
    robot.wait_for_state('serving')


def test_c34_when_the_cameras_die_mid_chunk_the_last_step_is_held(node, robot):
    robot.on = set()
    robot.wait_for_state('waiting')
    poll(lambda: len(held(robot, 70)) == 70, 60, lambda: 'held steps')
    robot.wait_for_detail('holding: the last chunk has run out')


def test_c39_one_frame_twice_gives_one_chunk(node, robot):
    robot.on = set()
    poll(lambda: robot.steps() and robot.steps()[-1].hold, 60, lambda: 'a hold')
    at = robot.now_ns()

    def chunk():
        assert robot.trigger('reset').success
        robot.joints.publish(joint_state(robot.now_ns()))
        time.sleep(0.1)
        robot.base.publish(image(at))
        robot.wrist.publish(jpeg(at))
        robot.third.publish(image(at))
        give_up = time.monotonic() + 1
        while time.monotonic() < give_up and not robot.answered(at):
            time.sleep(0.01)
        return robot.answered(at) and list(robot.chunks()[-1].actions)

    first = poll(chunk, 60, lambda: f'a chunk, {robot.status()}')
    robot.chunks().clear()
    assert poll(chunk, 60, lambda: f'a chunk, {robot.status()}') == first


def test_the_trajectory_of_a_chunk_leaves_out_what_is_past(node, robot):
    def newest():
        """A trajectory and the chunk it is made of, joined without a break."""
        chunks = {stamp(c.header.stamp): c for c in list(robot.chunks())}
        pairs = [(t, chunks.get(stamp(t.header.stamp))) for t in list(robot.trajectories)]
        return next((pair for pair in reversed(pairs) if pair[1]), None)

    message, chunk = poll(newest, 60, lambda: 'a trajectory and its chunk')
    assert list(message.joint_names) == JOINTS
    rows = np.reshape(chunk.actions, (chunk.horizon, -1))
    times = [p.time_from_start.sec + p.time_from_start.nanosec / 1e9 for p in message.points]
    first = round(times[0] / 0.05)
    assert first >= 1 and len(times) == chunk.horizon - first
    np.testing.assert_allclose(times, 0.05 * np.arange(first, chunk.horizon), atol=1e-9)
    for row, point in zip(rows[first:], message.points, strict=True):
        np.testing.assert_array_equal(point.positions, row)
    status = robot.wait_for_state('serving')
    assert status.seam_joint in JOINTS and status.seam_jump >= 0


def test_c20_stop_in_the_middle_of_a_400_token_request(node, robot):
    for i in range(4):  # random weights may end an answer at once
        robot.request.publish(
            msg.LanguageRequest(
                id=f'long-{i}', prompt='Tell it all.', max_tokens=400, temperature=1.0, seed=i
            )
        )

    def running():
        return [
            f'long-{i}'
            for i in range(4)
            if len(robot.answer(f'long-{i}')) > 3 and not robot.ended(f'long-{i}')
        ]

    poll(running, 60, lambda: 'words')
    assert robot.trigger('stop').success
    asked = robot.now_ns()
    poll(lambda: not running(), 60, lambda: 'the end of the words')
    ends = [robot.ended(f'long-{i}') for i in range(4)]
    assert any(end and end.reason == 'cancelled' for end in ends)
    status = robot.wait_for_state('stopped')
    assert '~/resume' in status.detail

    def since_then():
        return [s for s in list(robot.steps()) if stamp(s.header.stamp) > asked]

    poll(lambda: len(since_then()) > 20, 60, lambda: 'steps')  # frames still come
    after = since_then()
    assert all(s.hold for s in after)
    assert len({tuple(s.values) for s in after}) == 1
    assert len(robot.trajectories[-1].points) == 1
    assert list(robot.trajectories[-1].points[0].positions) == list(after[0].values)
    assert robot.trigger('resume').message == 'actions go on'
    robot.wait_for_motion()
    robot.wait_for_state('serving')


def test_the_emergency_topic_is_latched_and_not_lifted_while_it_is_pressed(node, robot):
    def press(value):
        robot.emergency.publish(Bool(data=value))

    def is_stopped():
        press(True)
        return robot.status() and robot.status().state == 'stopped'

    poll(is_stopped, 60, lambda: 'the stop')
    for label in ('deactivate', 'activate'):
        request = ChangeState.Request()
        request.transition.label = label
        assert robot.call(ChangeState, f'{NAME}/change_state', request).success
    robot.wait_for_state('stopped')
    refused = robot.trigger('resume')
    assert not refused.success and 'publish false first' in refused.message
    assert 'still stopped' in robot.trigger('reset').message

    def is_lifted():
        press(False)
        return robot.trigger('resume').success

    poll(is_lifted, 60, lambda: 'the end of the stop')
    robot.wait_for_motion()


def test_a_signal_ends_with_the_last_step_held(process, robot):
    """The last one of this node."""
    node = process
    robot.wait_for_motion()
    assert node.stop(signal.SIGTERM) == 0, node.log
    poll(lambda: robot.steps() and robot.steps()[-1].hold, 60, lambda: 'the last step')
    before, last = list(robot.steps())[-2:]
    assert list(last.values) == list(before.values)
    assert node.log.count('real-time priority') == 1


def test_c36_a_value_beyond_a_joint_limit_refuses_every_chunk_and_nothing_moves(
    tmp_path, tiny_checkpoint, robot
):
    contract = write_contract(tmp_path, {'elbow': {'lower': -1e-6, 'upper': 1e-6}})
    robot.on = {BASE, WRIST, THIRD}
    node = start(tmp_path, tiny_checkpoint, contract)
    try:
        for heard in robot.heard.values():
            heard.clear()
        said = poll(
            lambda: (
                robot.status() and 'are refused: row' in robot.status().detail and robot.status()
            ),
            60,
            robot.status,
        )
        assert 'elbow is ' in said.detail
        poll(lambda: dropped(robot.status()).get('chunk_out_of_limits', 0) > 3, 60, robot.status)
        assert not robot.steps() and not robot.chunks()
        assert node.stop() == 0, node.log
        assert not robot.steps()
    finally:
        node.kill()

"""Parts of the node that break or stand still, in its own process: what the robot is told then."""

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import State
from lifecycle_msgs.srv import ChangeState, GetState
from robot_peer import TRAJECTORY, Robot, write_contract
from ros_harness import NodeProcess, dropped, poll
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from oxygen_ros.ros import qos

NAME = 'oxygen_faults'


@pytest.fixture
def robot():
    robot = Robot(NAME)
    robot.health = robot.hear('/diagnostics', DiagnosticArray, qos.DIAGNOSTICS)
    yield robot
    robot.close()


@pytest.fixture
def start(tmp_path, tiny_checkpoint):
    """A node with these faults and this contract; killed at the end."""
    processes = []

    def begin(faults, arguments=(), **actions):
        processes.append(
            NodeProcess(
                tmp_path,
                node_name=NAME,
                faults=faults,
                arguments=arguments,
                checkpoint=str(tiny_checkpoint),
                robot=write_contract(tmp_path, trajectory_topic=TRAJECTORY, **actions),
                autostart=True,
                default_instruction='put the red block on the tray',
                status_period_s=0.1,
            )
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()


def wait_for_error(robot, part, text):
    """Until /diagnostics has an ERROR of a part of the node that says this."""

    def newest():
        return [e for e in robot.health[-1].status if e.name == f'/{NAME}: {part}']

    poll(
        lambda: any(e.level == DiagnosticStatus.ERROR and text in e.message for e in newest()),
        30,
        lambda: f'{text!r}, {newest()}',
    )


def state(robot):
    return robot.call(GetState, f'{NAME}/get_state', GetState.Request()).current_state.id


def test_a_broken_engine_lets_the_stream_run_out_by_contract_and_ends_every_request(start, robot):
    node = start({'breaks_after': 5}, when_expired='ramp', ramp_s=1.0)
    robot.wait_for_motion()
    asked = robot.ask_long()
    poll(lambda: len(robot.ends(asked)) == 4, 60, lambda: f'the ends, {robot.ends(asked)}')
    failed = [robot.ended(name) for name in asked if robot.ended(name).reason == 'failed']
    assert failed and all('the engine broke: RuntimeError' in end.text for end in failed)
    poll(lambda: node.log.count('cleanup: done'), 60, lambda: f'the cleanup, {node.log}')
    assert state(robot) == State.PRIMARY_STATE_UNCONFIGURED
    assert 'an illegal memory access' in robot.wait_for_state('failed').detail
    said = [s.detail for s in robot.heard[f'{NAME}/status'] if s.state == 'failed']
    assert any(detail.startswith('ramping to a stop') for detail in said)
    last = poll(lambda: robot.steps()[-1].hold and robot.steps()[-1], 60, lambda: 'the last step')
    ramp = [step for step in robot.steps() if step.hold and step.frame == last.frame]
    assert len({tuple(step.values) for step in ramp}) > 5
    assert list(ramp[-1].values) == list(ramp[-2].values)
    assert list(robot.trajectories[-1].points[0].positions) == list(last.values)
    assert node.stop() == 0, node.log


def test_a_step_that_cannot_be_published_is_counted_and_the_stream_goes_on(start, robot):
    node = start({'fails': [50, 450]})
    robot.wait_for_motion()
    robot.wait_for_detail('the action stream makes')
    wait_for_error(robot, 'action stream', 'of 70 ticks per s')
    poll(lambda: 'makes' not in robot.status().detail, 60, lambda: f'its end, {robot.status()}')
    robot.wait_for_motion()
    assert dropped(robot.status())['action_failed'] == 401
    assert 'no room in the history' in node.log
    assert node.stop() == 0, node.log


def test_a_step_of_the_engine_that_does_not_end_is_named_and_stopped_all_the_same(
    start, robot, tmp_path
):
    stuck = tmp_path / 'stuck'
    node = start({'step': str(stuck)})
    robot.wait_for_motion()
    stuck.touch()
    robot.wait_for_detail('no step of the engine has ended for')
    robot.wait_for_detail('holding')
    wait_for_error(robot, 'engine', 'no step of the engine has ended for')
    assert robot.trigger('stop').success
    robot.wait_for_state('stopped')
    assert robot.trigger('resume').success
    stuck.unlink()
    poll(lambda: 'no step' not in robot.status().detail, 60, lambda: f'its end, {robot.status()}')
    robot.wait_for_motion()
    assert node.stop() == 0, node.log


def test_c20_a_stop_waits_for_no_picture_and_can_be_remapped(start, robot, tmp_path):
    """The picture's callback lasts until the test has seen everything else."""
    large = tmp_path / 'large'
    remaps = ('-r', '~/emergency_stop:=/red_button', '-r', f'{NAME}:~/stop:=/red_stop')
    node = start({'image': str(large)}, remaps)
    button = robot.node.create_publisher(Bool, '/red_button', qos.EMERGENCY[0])
    robot.wait_for_motion()
    large.touch()
    node.wait_for_log('image: stands still')

    def is_held():
        return len(robot.trajectories[-1].points) == 1

    assert not is_held()
    button.publish(Bool(data=True))
    poll(is_held, 60, lambda: 'the hold of the button')
    assert 'publish false first' in robot.trigger('resume').message
    button.publish(Bool(data=False))
    poll(lambda: robot.trigger('resume').success, 60, lambda: 'the end of the stop')
    robot.trajectories.clear()
    assert robot.call(Trigger, '/red_stop', Trigger.Request()).success
    poll(lambda: robot.trajectories and is_held(), 60, lambda: 'the hold of the service')
    large.unlink()
    robot.wait_for_state('stopped')
    assert robot.trigger('resume').success
    robot.wait_for_motion()
    assert node.stop() == 0, node.log


def test_an_activation_that_beats_autostart_stands(start, robot, tmp_path):
    news = tmp_path / 'news'
    news.touch()
    node = start({'loaded': str(news)})
    robot.wait_for_detail('configured: activate to serve')
    request = ChangeState.Request()
    request.transition.label = 'activate'
    assert robot.call(ChangeState, f'{NAME}/change_state', request).success
    news.unlink()
    node.wait_for_log('loaded: pi05')
    assert state(robot) == State.PRIMARY_STATE_ACTIVE
    robot.wait_for_motion()
    assert 'Traceback' not in node.log

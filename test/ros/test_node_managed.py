"""The node under a lifecycle manager: ids, long steps, rivals, what a start says."""

import subprocess
import sys
import time

import pytest
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from robot_peer import TRAJECTORY, write_contract
from ros_harness import NodeProcess, Peer, dropped, poll
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import ActionStep

NAME = 'oxygen_managed'
LEAVING = 'the last step of the configuration before is still running'


@pytest.fixture
def client():
    peer = Peer(node_name=NAME)
    yield peer
    peer.close()


@pytest.fixture
def start(tmp_path, tiny_checkpoint):
    """Start the node with these parameters; killed at the end if the test has not ended it."""
    processes = []

    def begin(**parameters):
        parameters = {'checkpoint': str(tiny_checkpoint), 'robot': 'demo', **parameters}
        processes.append(NodeProcess(tmp_path, node_name=NAME, status_period_s=0.1, **parameters))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()


def change(peer, number):
    """What a manager in C++ sends: an id and no label."""
    request = ChangeState.Request(transition=Transition(id=number))
    return peer.call(ChangeState, f'{NAME}/change_state', request).success


def state(peer):
    return peer.call(GetState, f'{NAME}/get_state', GetState.Request()).current_state.id


CONFIGURE, CLEANUP = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP
ACTIVATE, DEACTIVATE = Transition.TRANSITION_ACTIVATE, Transition.TRANSITION_DEACTIVATE
SHUTDOWN = Transition.TRANSITION_INACTIVE_SHUTDOWN
# The state, what is possible in it, and the ids that lead on to the next one.
STATES = [
    (State.PRIMARY_STATE_UNCONFIGURED, {CONFIGURE, 5}, [CONFIGURE]),
    (State.PRIMARY_STATE_INACTIVE, {CLEANUP, ACTIVATE, SHUTDOWN}, [ACTIVATE]),
    (State.PRIMARY_STATE_ACTIVE, {DEACTIVATE, 7}, [DEACTIVATE, SHUTDOWN]),
    (State.PRIMARY_STATE_FINALIZED, set(), []),
]
IDS = [*range(10), Transition.TRANSITION_ON_CONFIGURE_SUCCESS, 60, 99, 255]


def test_an_id_that_is_not_possible_is_answered_in_every_state(start, client):
    node = start()
    client.wait_for_state('inactive')
    for here, possible, onward in STATES:
        for number in IDS:
            if number not in possible:
                assert not change(client, number)
        assert state(client) == here
        for number in onward:
            assert change(client, number)
        if here == State.PRIMARY_STATE_UNCONFIGURED:
            client.wait_for_detail('configured: activate')
    assert 'in state active possible are deactivate (4), shutdown (7)' in node.log
    assert node.stop() == 0, node.log
    assert 'Traceback' not in node.log


def frames_until_busy(peer):
    """Until a frame has waited for so long that the next one replaced it."""

    def busy():
        peer.frame()
        time.sleep(0.2)
        return dropped(peer.status()).get('frame_replaced', 0) > 0

    poll(busy, 60, lambda: f'a step that lasts, {peer.status()}')


def test_cleanup_waits_for_no_step_and_configure_does(start, client):
    """The first step takes 15 s, the second a minute, for which a signal does not wait."""
    node = start(faults={'sleep_s': [15, 60]}, default_instruction='go')
    client.wait_for_state('inactive')
    for number in range(2):
        assert change(client, CONFIGURE)
        client.wait_for_detail('configured: activate')
        assert change(client, ACTIVATE)
        frames_until_busy(client)
        assert change(client, DEACTIVATE) and change(client, CLEANUP)
        client.wait_for_detail(f'not configured; {LEAVING}')
        assert not change(client, CONFIGURE)
        assert f'cannot configure: {LEAVING}' in node.log
        if number == 0:
            poll(lambda: client.status().detail == 'not configured', 60, lambda: 'the end')
    assert node.stop() == 0, node.log
    assert 'Traceback' not in node.log


def test_a_second_publisher_of_what_moves_the_robot_is_named_until_it_is_gone(
    start, client, tmp_path
):
    robot = write_contract(tmp_path, trajectory_topic=TRAJECTORY)
    node = start(robot=robot, autostart=True, default_instruction='go')
    client.wait_for_state('waiting')
    for topic, kind in ((f'/{NAME}/action', ActionStep), (TRAJECTORY, JointTrajectory)):
        rival = client.node.create_publisher(kind, topic, 5)
        text = f'{topic if topic[0] == "/" else "/" + topic}: has 2 publishers (/{NAME}, /peer)'
        client.wait_for_detail(text)
        client.node.destroy_publisher(rival)
        poll(lambda: text not in client.status().detail, 60, lambda: 'its end')  # noqa: B023
        assert node.log.count(text) == 1


def test_the_file_beats_what_the_launch_file_starts_with_and_what_is_waited_for_is_said(tmp_path):
    """Its own file with autostart is the first of all, whichever section names the node."""
    first = tmp_path / 'first.yaml'
    first.write_text('/**: {ros__parameters: {autostart: true}}')
    for k, section in enumerate(('/**', NAME)):
        file = tmp_path / f'{k}.yaml'
        file.write_text(f'{section}: {{ros__parameters: {{autostart: false}}}}')
        files = [word for f in (first, file) for word in ('--params-file', str(f))]
        command = [sys.executable, '-m', 'oxygen_ros.ros.node', '--ros-args', *files]
        log = tmp_path / f'{k}.log'
        with open(log, 'wb') as out:
            node = subprocess.Popen(
                [*command, '-r', f'__node:={NAME}'], stdout=out, stderr=subprocess.STDOUT
            )
        try:
            poll(lambda: 'unconfigured: call' in log.read_text(), 60, log.read_text)  # noqa: B023
        finally:
            node.kill()
            node.wait()


def test_a_home_folder_is_meant_by_a_tilde(start, client, tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / 'weights').symlink_to(tiny_checkpoint)
    (tmp_path / 'mine.yaml').symlink_to(write_contract(tmp_path))
    start(checkpoint='~/weights', robot='~/mine.yaml', autostart=True)
    client.wait_for_state('waiting')

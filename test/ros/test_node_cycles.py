"""Configured, activated, used and cleaned up again and again, the process stays as it was."""

import itertools
import os

import pytest
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import GetParameters
from ros_harness import NodeProcess, Peer, poll, stamp

NAME = 'oxygen_cycles'
SETTLE = 4  # cycles in which caches and thread pools fill
CYCLES = 12


@pytest.fixture
def client():
    peer = Peer(node_name=NAME)
    yield peer
    peer.close()


@pytest.fixture
def node(tmp_path, client, tiny_checkpoint):
    process = NodeProcess(
        tmp_path,
        node_name=NAME,
        checkpoint=str(tiny_checkpoint),
        robot='demo',
        status_period_s=0.05,
        default_instruction='go on',
    )
    client.wait_for_state('inactive')
    yield process
    process.kill()


def transition(peer, label):
    request = ChangeState.Request()
    request.transition.label = label
    assert peer.call(ChangeState, f'{NAME}/change_state', request).success, label


def load(peer):
    """Configure, and wait until the node says that it is loaded."""
    transition(peer, 'configure')
    since_ns = peer.now_ns()

    def loaded():
        status = peer.status()
        is_new = status and stamp(status.header.stamp) > since_ns
        return is_new and status.detail.startswith('configured')

    poll(loaded, 60, lambda: f'the load, {peer.status()}')


def cycle(peer):
    """Everything from configure to cleanup, with a frame answered in between."""
    load(peer)
    transition(peer, 'activate')
    peer.chunks().clear()
    peer.frames_until(lambda: peer.chunks(), what='a chunk')
    transition(peer, 'deactivate')
    transition(peer, 'cleanup')


def resources(process, peer):
    """Open files, threads, topics and resident memory in kB of the node."""
    proc = f'/proc/{process.process.pid}'
    with open(f'{proc}/status') as file:
        lines = dict(line.split(':', 1) for line in file)
    topics = peer.node.get_subscriber_names_and_types_by_node(NAME, '/')
    topics += peer.node.get_publisher_names_and_types_by_node(NAME, '/')
    counts = (len(os.listdir(f'{proc}/fd')), int(lines['Threads']), len(topics))
    return counts, int(lines['VmRSS'].split()[0])


def test_nothing_is_left_behind_by_a_cycle(node, client):
    for _ in range(SETTLE):
        cycle(client)
    before, memory = resources(node, client)
    for _ in range(CYCLES):
        cycle(client)
    poll(lambda: resources(node, client)[0] == before, 10, lambda: f'{before} of '
         f'{resources(node, client)}')  # fmt: skip
    assert resources(node, client)[1] < 1.1 * memory
    assert node.stop() == 0, node.log
    assert 'Traceback' not in node.log


def test_c21_services_are_answered_while_weights_are_loaded(node, client):
    """Between 'configure' and the end of the load: how fast they are is for a benchmark."""
    get = client.node.create_client(GetParameters, f'{NAME}/get_parameters')
    state = client.node.create_client(GetState, f'{NAME}/get_state')
    assert get.wait_for_service(20) and state.wait_for_service(20)
    answered = []
    transition(client, 'configure')
    for number in itertools.count():
        before = client.status().state
        future = (get.call_async(GetParameters.Request(names=['mode'])) if number % 2
                  else state.call_async(GetState.Request()))  # fmt: skip
        poll(future.done, 10, lambda: 'an answer')
        answered.append(before)
        if client.status().detail.startswith('configured'):
            break
    assert {'loading', 'warming_up'} & set(answered)

"""Configured, activated, used and cleaned up again and again, the process stays as it was."""

import itertools
import os
import shutil
import time

import pytest
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import GetParameters
from ros_harness import NodeProcess, Peer, poll, stamp

from oxygen_ros.checkpoint.random_tokenizer import vocabulary, write_tokenizer
from oxygen_ros.processing.tokenizer import Tokenizer

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
    poll(lambda: resources(node, client)[0] == before, 60, lambda: f'{before} of '
         f'{resources(node, client)}')  # fmt: skip
    assert resources(node, client)[1] < 1.1 * memory
    assert node.stop() == 0, node.log
    assert 'Traceback' not in node.log


def seconds_of(action):
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def longest_answer(peer, until):
    """Call two services in turn until it is true; the s that the slowest took, and the states."""
    get = peer.node.create_client(GetParameters, f'{NAME}/get_parameters')
    state = peer.node.create_client(GetState, f'{NAME}/get_state')
    assert get.wait_for_service(20) and state.wait_for_service(20)
    longest, states = 0.0, set()
    for number in itertools.count():
        states.add(peer.status().state)
        begin = time.monotonic()
        future = (get.call_async(GetParameters.Request(names=['mode'])) if number % 2
                  else state.call_async(GetState.Request()))  # fmt: skip
        poll(future.done, 60, lambda: 'an answer')
        longest = max(longest, time.monotonic() - begin)
        if until():
            return longest, states


def test_c21_services_are_answered_while_a_real_vocabulary_is_loaded(
    tmp_path, client, tiny_checkpoint
):
    """Reading it holds up all threads; none of that may fall on who calls a service."""
    checkpoint = tmp_path / 'checkpoint'
    shutil.copytree(tiny_checkpoint, checkpoint)
    write_tokenizer(checkpoint / 'tokenizer', vocabulary(257_152))
    reading_s = seconds_of(lambda: Tokenizer(checkpoint / 'tokenizer', 768))
    process = NodeProcess(
        tmp_path, node_name=NAME, checkpoint=str(checkpoint), robot='demo', status_period_s=0.05
    )
    try:
        client.wait_for_state('inactive')
        request = ChangeState.Request()
        request.transition.label = 'configure'
        change = client.node.create_client(ChangeState, f'{NAME}/change_state')
        assert change.wait_for_service(20)
        change.call_async(request)
        longest_s, states = longest_answer(
            client, lambda: client.status().detail.startswith('configured')
        )
        assert {'loading', 'warming_up'} & states
        assert longest_s < reading_s / 2
    finally:
        process.kill()

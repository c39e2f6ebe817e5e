"""One node process and one peer for most tests of the node."""

import shutil

import pytest
from ros_harness import JOINTS, NodeProcess, Peer, use_own_domain

from oxygen_ros.checkpoint.random_pi05 import write_random_checkpoint

use_own_domain()


@pytest.fixture(scope='session')
def tiny_checkpoint(tmp_path_factory):
    """A folder with random weights that fits the contract 'demo'."""
    path = tmp_path_factory.mktemp('checkpoint') / 'tiny'
    write_random_checkpoint(path, 'tiny', state_dim=len(JOINTS))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope='module')
def peer():
    """The robot and its user."""
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(scope='module')
def served(tmp_path_factory, tiny_checkpoint, peer):
    """The node process; ends cleanly after the tests of a module, or they fail."""
    process = NodeProcess(
        tmp_path_factory.mktemp('node'),
        checkpoint=str(tiny_checkpoint),
        robot='demo',
        autostart=True,
        action_rate_hz=70,
        budget=5,
        status_period_s=0.1,
        max_rows=4,
        max_queue=4,
    )
    try:
        peer.wait_for_state('waiting')
        yield process
        assert process.stop() == 0, process.log
        assert 'Traceback' not in process.log
    finally:
        process.kill()


@pytest.fixture
def node(served, peer):
    """The shared node with an instruction, nothing pending and nothing heard yet."""
    from std_msgs.msg import String
    from std_srvs.srv import Trigger

    peer.instruction.publish(String(data='put the red block on the tray'))
    assert peer.call(Trigger, 'oxygen/reset', Trigger.Request()).success
    for heard in peer.heard.values():
        heard.clear()
    yield served
    assert served.alive, served.log

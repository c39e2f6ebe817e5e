"""The node refuses at configure, before it loads weights, what oxygen_check calls a misfit."""

import pytest
from lifecycle_msgs.srv import ChangeState
from misfits import CASES, GOLDEN, copy_checkpoint, write_contract
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from ros_harness import NodeProcess, Peer, poll, use_own_domain

NAME = 'oxygen_check_test'
DEFAULTS = {'device': 'cpu', 'max_rows': 8, 'max_kv_mb': 4096}

use_own_domain()


@pytest.fixture(scope='module')
def client():
    peer = Peer(node_name=NAME)
    yield peer
    peer.close()


@pytest.fixture(scope='module')
def node(tmp_path_factory, client):
    """One node for all cases: a refusal must leave it able to try again."""
    process = NodeProcess(tmp_path_factory.mktemp('node'), node_name=NAME, status_period_s=0.05)
    client.wait_for_state('inactive')
    yield process
    process.kill()


def configure(client, **parameters):
    """Set the parameters and configure; whether the transition was made."""
    request = SetParameters.Request(
        parameters=[Parameter(name, value=value).to_parameter_msg()
                    for name, value in parameters.items()]
    )  # fmt: skip
    results = client.call(SetParameters, f'{NAME}/set_parameters', request).results
    assert all(result.successful for result in results), results
    return transition(client, 'configure')


def transition(client, label):
    request = ChangeState.Request()
    request.transition.label = label
    return client.call(ChangeState, f'{NAME}/change_state', request).success


@pytest.mark.parametrize('name', CASES)
def test_refused_at_configure_with_the_same_names(node, client, tmp_path, name):
    case = CASES[name]
    values = {
        **DEFAULTS,
        **case.parameters,
        'checkpoint': str(copy_checkpoint(tmp_path / 'copy', case.checkpoint)),
        'robot': str(write_contract(tmp_path / 'robot.yaml', case.contract)),
    }
    assert not configure(client, **values)
    poll(
        lambda: all(word in client.status().detail for word in case.words),
        20,
        lambda: f'{case.words} in the status, {client.status()}',
    )
    assert client.status().state == 'failed'
    assert 'loading' not in node.log and 'Traceback' not in node.log


def test_then_it_is_mended_and_starts(node, client, tmp_path):
    robot = write_contract(tmp_path / 'robot.yaml')
    assert configure(client, **DEFAULTS, checkpoint=str(GOLDEN), robot=str(robot))
    poll(
        lambda: client.status().detail.startswith('configured'),
        60,
        lambda: f'the load, {client.status()}',
    )
    assert '{right_wrist_0_rgb} are not in the contract' in node.log
    assert transition(client, 'cleanup')
    assert node.stop() == 0, node.log

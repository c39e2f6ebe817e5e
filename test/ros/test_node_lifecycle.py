"""Configure, activate, clean up; bad configurations; ends by signal. A process per case."""

import json
import signal
import time

import pytest
from lifecycle_msgs.msg import State
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import GetParameters, ListParameters, SetParameters
from rclpy.parameter import Parameter, parameter_value_to_python
from ros_harness import NodeProcess, Peer, dropped, poll, stamp
from std_msgs.msg import String
from std_srvs.srv import Trigger

from oxygen_ros.msg import LanguageToken
from oxygen_ros.ros import qos

# Another name keeps these nodes apart from the shared one.
NAME = '/oxygen_b'


@pytest.fixture
def start(tmp_path):
    """Start a node with these parameters; killed at the end if the test has not ended it."""
    processes = []

    def begin(**parameters):
        processes.append(
            NodeProcess(tmp_path, node_name=NAME[1:], status_period_s=0.1, **parameters)
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()


@pytest.fixture
def client():
    """A peer that hears only the second node's status."""
    peer = Peer(node_name=NAME[1:])
    yield peer
    peer.close()


def transition(peer, label):
    request = ChangeState.Request()
    request.transition.label = label
    return peer.call(ChangeState, f'{NAME}/change_state', request).success


def state(peer):
    return peer.call(GetState, f'{NAME}/get_state', GetState.Request()).current_state.id


def set_parameter(peer, name, value):
    request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
    return peer.call(SetParameters, f'{NAME}/set_parameters', request).results[0]


def activate_when_loaded(peer):
    """After a configure; what the status said before that does not count."""
    peer.heard[f'{NAME[1:]}/status'].clear()
    since_ns = peer.now_ns()

    def loaded():
        status = peer.status()
        is_new = status and stamp(status.header.stamp) > since_ns
        return is_new and status.detail.startswith('configured')

    poll(loaded, 60, lambda: f'the load, {peer.status()}')
    assert transition(peer, 'activate')


def test_the_node_can_be_configured_by_hand_again_and_again(start, client, tiny_checkpoint):
    node = start(checkpoint=str(tiny_checkpoint), robot='demo')
    client.wait_for_state('inactive')
    for _ in range(2):
        assert state(client) == State.PRIMARY_STATE_UNCONFIGURED
        assert set_parameter(client, 'action_rate_hz', 50).successful
        assert transition(client, 'configure')
        refused = set_parameter(client, 'action_rate_hz', 60)
        assert not refused.successful and 'clean up first' in refused.reason
        activate_when_loaded(client)
        client.wait_for_state('waiting')
        assert transition(client, 'deactivate')
        assert transition(client, 'cleanup')
    assert node.stop() == 0, node.log
    assert 'Traceback' not in node.log


def test_autostart_activates_once_and_not_again_after_others_took_over(
    start, client, tiny_checkpoint
):
    node = start(checkpoint=str(tiny_checkpoint), robot='demo', autostart=True)
    client.wait_for_state('waiting')
    for label in ('deactivate', 'cleanup', 'configure'):
        assert transition(client, label)
    poll(lambda: node.log.count('loaded: ') == 2, 60, lambda: f'the load, {node.log}')
    assert state(client) == State.PRIMARY_STATE_INACTIVE
    assert node.log.count(': activate: done') == 1
    assert node.stop() == 0, node.log


def test_c20_only_resume_lifts_a_stop(start, client, tiny_checkpoint):
    node = start(checkpoint=str(tiny_checkpoint), robot='demo')
    client.wait_for_state('inactive')

    def trigger(service):
        return client.call(Trigger, f'{NAME}/{service}', Trigger.Request())

    assert trigger('stop').success
    reset = trigger('reset')
    assert not reset.success and 'still stopped by ~/stop' in reset.message
    assert transition(client, 'configure')
    activate_when_loaded(client)
    client.wait_for_state('stopped')
    reset = trigger('reset')
    assert reset.success and 'still stopped by ~/stop' in reset.message
    client.wait_for_state('stopped')
    assert trigger('resume').message == 'actions go on'
    client.wait_for_state('waiting')
    assert node.stop() == 0, node.log


BAD = [
    ({'checkpoint': '/no/such/folder'}, '/no/such/folder'),
    ({'checkpoint': ''}, 'checkpoint is empty'),
    ({'robot': 'no_such_robot'}, 'no_such_robot'),
    ({'robot': 'humanoid_upper_body'}, 'contract'),
    ({'max_kv_mb': 1, 'max_new_tokens': 60000}, 'max_kv_mb'),
]


def test_bad_configurations_are_explained_and_mended_without_a_restart(
    start, client, tiny_checkpoint
):
    good = {
        'checkpoint': str(tiny_checkpoint),
        'robot': 'demo',
        'max_kv_mb': 64,
        'max_new_tokens': 8,
    }
    # What cannot be set by a service can still be in the file.
    node = start(**good, autostart=True, mode='fast')
    assert "mode is 'fast'" in client.wait_for_state('failed').detail
    assert set_parameter(client, 'mode', 'continuous').successful
    for changed, named in BAD:
        for name, value in {**good, **changed}.items():
            assert set_parameter(client, name, value).successful
        transition(client, 'configure')
        client.wait_for_detail(named)
        assert client.wait_for_state('failed') and named in node.log
        assert state(client) == State.PRIMARY_STATE_UNCONFIGURED
    for name, value in good.items():
        assert set_parameter(client, name, value).successful
    assert transition(client, 'configure')
    client.wait_for_state('waiting')
    assert node.stop() == 0, node.log


def test_a_wrong_transition_or_parameter_does_not_end_the_node(start, client, tiny_checkpoint):
    node = start(checkpoint=str(tiny_checkpoint), robot='demo', max_rowz=3, action_rate_hz=70)
    client.wait_for_state('inactive')
    assert not transition(client, 'activate')
    assert not transition(client, 'no such transition')
    assert not set_parameter(client, 'max_rows', 0).successful
    read_only = set_parameter(client, 'autostart', True)
    assert not read_only.successful
    values = client.call(
        GetParameters,
        f'{NAME}/get_parameters',
        GetParameters.Request(names=['action_rate_hz', 'max_rows']),
    ).values
    assert (values[0].integer_value, values[1].integer_value) == (70, 8)
    assert 'unknown parameter max_rowz: did you mean max_rows?' in node.log
    assert node.alive


def test_an_instruction_is_heard_from_latched_and_from_volatile_publishers(
    start, client, tiny_checkpoint
):
    client.instruction.publish(String(data='said before the node was there'))
    start(checkpoint=str(tiny_checkpoint), robot='demo', autostart=True)
    client.wait_for_state('waiting')
    poll(lambda: 'instruction' not in client.status().detail, 60, lambda: 'the latched one')
    client.node.destroy_publisher(client.instruction)
    for label in ('deactivate', 'cleanup', 'configure'):
        assert transition(client, label)
    activate_when_loaded(client)
    poll(lambda: 'instruction' in client.wait_for_state('waiting').detail, 60, lambda: 'none')
    volatile = client.node.create_publisher(String, 'instruction', 1)

    def heard():
        volatile.publish(String(data='said now and then'))
        return 'instruction' not in client.status().detail

    poll(heard, 60, lambda: f'the volatile one, {client.status()}')


@pytest.mark.parametrize(
    ('number', 'moment'), [(signal.SIGINT, 'configure: done'), (signal.SIGTERM, 'activate: done')]
)
def test_a_signal_ends_the_node_cleanly_while_it_loads_or_waits(
    start, tiny_checkpoint, number, moment
):
    node = start(checkpoint=str(tiny_checkpoint), robot='demo', autostart=True)
    node.wait_for_log(moment)
    assert node.stop(number, timeout=5) == 0, node.log
    assert 'Traceback' not in node.log


def test_a_signal_in_the_middle_of_answers_ends_the_node_cleanly(start, client, tiny_checkpoint):
    node = start(
        checkpoint=str(tiny_checkpoint), robot='demo', autostart=True, default_instruction='go on'
    )
    client.wait_for_state('waiting')
    asked = client.ask_long()
    client.frames_until(
        lambda: any(len(client.answer(name)) > 2 and not client.ended(name) for name in asked)
    )
    assert node.stop(timeout=5) == 0, node.log
    assert 'Traceback' not in node.log


LIVE = {
    'budget': 'unlimited',
    'default_instruction': 'fold the towel',
    'idle_step_period_ms': 50.0,
    'status_period_s': 0.2,
}


def test_c60_live_parameters_take_effect_and_are_read_back(start, client, tiny_checkpoint):
    node = start(checkpoint=str(tiny_checkpoint), robot='demo', autostart=True)
    contracts = client.hear(f'{NAME[1:]}/contract', String, qos.CONTRACT)
    client.wait_for_state('waiting')
    assert 'instruction on' in client.status().detail
    assert all(set_parameter(client, name, value).successful for name, value in LIVE.items())
    poll(lambda: 'instruction on' not in client.status().detail, 60, lambda: 'the instruction')
    poll(lambda: 'unlimited' in effective(client).get('budget', ''), 60, lambda: 'the budget')
    shown = json.loads(contracts[-1].data)
    assert {name: shown['parameters'][name] for name in LIVE} == LIVE
    assert shown['model']['effective']['budget'] == client.status().budget == 'unlimited'
    client.frames_until(lambda: client.chunks(), what='a chunk')
    assert client.status().budget_left == -1
    refused = set_parameter(client, 'status_period_s', 5)
    assert not refused.successful and 'from 0.05 to 1' in refused.reason
    assert not set_parameter(client, 'tasks.subtask.every_s', 1.0).successful
    assert node.stop() == 0, node.log


def parameters(peer, names):
    """Values of the node's parameters by name, as `ros2 param get` has them."""
    request = GetParameters.Request(names=list(names))
    values = peer.call(GetParameters, f'{NAME}/get_parameters', request).values
    return {
        name: parameter_value_to_python(value) for name, value in zip(names, values, strict=True)
    }


def parameter_names(peer, prefix):
    request = ListParameters.Request(prefixes=[prefix])
    return peer.call(ListParameters, f'{NAME}/list_parameters', request).result.names


# No value is the default; cpu_threads, device and robot come out otherwise than they are given.
GIVEN = {
    'mode': 'shared_kv',
    'budget': 'auto',
    'device': 'cpu',
    'dtype': 'bfloat16',
    'cpu_threads': 0,
    'denoise_steps': 4,
    'seed': 7,
    'max_rows': 3,
    'max_queue': 5,
    'max_prompt_tokens': 20,
    'max_new_tokens': 30,
    'max_kv_mb': 100,
    'action_rate_hz': 40.0,
    'idle_step_period_ms': 60.0,
    'status_period_s': 0.15,
    'default_instruction': 'fold the towel',
    'language_tasks': ['plan', 'memory'],
}


def test_c60_every_option_is_read_back_as_it_really_is(start, client, tiny_checkpoint):
    node = start(checkpoint=str(tiny_checkpoint), robot='demo')
    client.wait_for_state('inactive')
    assert parameter_names(client, 'effective') == []
    for name, value in GIVEN.items():
        assert set_parameter(client, name, value).successful
    assert transition(client, 'configure')
    activate_when_loaded(client)
    client.wait_for_state('waiting')
    assert parameters(client, GIVEN) == GIVEN  # what was asked for
    names = parameter_names(client, 'effective')
    real = {n.removeprefix('effective.'): v for n, v in parameters(client, names).items()}
    assert real == effective(client)
    assert set(GIVEN) <= set(real)
    same = {n: str(v) for n, v in GIVEN.items() if n not in ('cpu_threads', 'language_tasks')}
    assert {name: real[name] for name in same} == same
    assert int(real['cpu_threads']) >= 1 and real['language_tasks'] == 'plan, memory'
    assert real['robot'].endswith('demo.yaml') and real['family'] == 'pi05'
    status = client.status()
    assert (status.dtype, status.mode, status.rows_limit) == ('bfloat16', 'shared_kv', 3)

    refused = set_parameter(client, 'effective.dtype', 'float32')
    assert not refused.successful and 'set dtype instead' in refused.reason
    assert set_parameter(client, 'budget', 2).successful
    poll(
        lambda: parameters(client, ['effective.budget'])['effective.budget'] == '2',
        60,
        lambda: 'the new budget',
    )
    for label in ('deactivate', 'cleanup'):
        assert transition(client, label)
    assert parameter_names(client, 'effective') == []
    assert set_parameter(client, 'mode', 'isolated').successful
    poll(lambda: client.status().mode == 'isolated', 60, lambda: 'the mode that will be')
    assert node.stop() == 0, node.log


def effective(peer):
    return {pair.key: pair.value for pair in peer.status().effective}


def test_tasks_ask_by_themselves_and_skip_when_behind(start, client, tiny_checkpoint):
    node = start(
        checkpoint=str(tiny_checkpoint),
        robot='demo',
        autostart=True,
        default_instruction='go on',
        budget=1,
        idle_step_period_ms=5000,
        tasks={
            'subtask': {'prompt': 'what now?', 'every_frames': 3, 'max_tokens': 3},
            'memory': {'prompt': 'and before?', 'every_frames': 1, 'max_tokens': 40},
            'dance': {'prompt': 'no such task'},
        },
    )
    client.wait_for_state('waiting')
    assert 'unknown parameter tasks.dance.prompt: dance is not in language_tasks' in node.log
    client.frames_until(
        lambda: (
            client.ended('subtask/1', 'subtask')
            and dropped(client.status()).get('skipped_memory', 0) > 1
        ),
        what='two answers and skipped ones',
    )
    frames = [client.answer(f'subtask/{k}', 'subtask')[0].frame for k in range(2)]
    assert frames[0] % 3 == 0 and frames[1] % 3 == 0 and frames[0] < frames[1]
    assert client.answer('memory/0', 'memory')[0].frame == 0
    assert "'what now?'" in effective(client)['tasks']


def test_tasks_can_be_set_by_a_service_before_configure(start, client, tiny_checkpoint):
    start(
        checkpoint=str(tiny_checkpoint), robot='demo', default_instruction='go', max_new_tokens=8
    )
    client.wait_for_state('inactive')
    assert set_parameter(client, 'language_tasks', ['plan']).successful
    assert transition(client, 'configure')  # declares what the new task has
    activate_when_loaded(client)
    for label in ('deactivate', 'cleanup'):
        assert transition(client, label)
    assert not set_parameter(client, 'tasks.plan.max_pending', 0).successful
    assert set_parameter(client, 'tasks.plan.every_frames', 1).successful
    assert not transition(client, 'configure')
    client.wait_for_detail('tasks.plan.max_tokens is 32: must be at most max_new_tokens (8)')
    assert set_parameter(client, 'tasks.plan.max_tokens', 2).successful
    assert transition(client, 'configure')
    activate_when_loaded(client)
    heard = client.hear(f'{NAME[1:]}/language/plan', LanguageToken, qos.TOKEN)
    client.frames_until(lambda: any(token.final for token in heard), what='a plan')
    assert heard[0].id == 'plan/0'


@pytest.mark.parametrize('after_s', [0.1, 0.3, 0.6, 1.2])
def test_c66_ctrl_c_at_any_moment_of_the_start_leaves_no_traceback(
    start, tiny_checkpoint, after_s
):
    node = start(checkpoint=str(tiny_checkpoint), robot='demo', autostart=True)
    time.sleep(after_s)
    # Before Python itself runs, the signal's own default ends the process.
    assert node.stop() in (0, -signal.SIGINT), node.log
    assert 'Traceback' not in node.log

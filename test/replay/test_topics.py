"""What is recorded for a later replay, and the command line that does it."""

from dataclasses import replace
from pathlib import Path

from bags import KIND

from oxygen_ros.replay.topics import record_command, topics_to_record
from oxygen_ros.ros.contract import load_contract

TASKS = ['memory', 'subtask']


def test_all_the_node_reads_and_answers():
    topics = topics_to_record(load_contract('demo'), TASKS)
    assert set(topics) >= set(KIND)  # what a replay reads
    assert set(topics) - set(KIND) == {
        '/oxygen/action_chunk', '/oxygen/action', '/oxygen/status', '/oxygen/contract',
        '/oxygen/language/refused', '/oxygen/language/memory', '/oxygen/language/subtask',
    }  # fmt: skip
    assert len(topics) == len(set(topics))


def test_names_in_a_namespace_of_another_node_and_absolute_ones():
    contract = load_contract('demo')
    contract = replace(
        contract,
        state=replace(contract.state, topic='/arm/joint_states'),
        actions=replace(contract.actions, trajectory_topic='~/trajectory'),
    )
    topics = topics_to_record(contract, TASKS, namespace='/r1/', node='vla', clock=True)
    assert '/arm/joint_states' in topics and '/r1/cameras/base/image_raw' in topics
    assert '/r1/vla/action_chunk' in topics and '/r1/vla/trajectory' in topics
    assert '/clock' in topics and '/clock' not in topics_to_record(contract, TASKS)


def test_the_command_line():
    command = record_command(Path('/data/run7'), ['/a', '/b'], sim_time=True)
    assert command[:3] == ['ros2', 'bag', 'record']
    assert command[-3:] == ['--topics', '/a', '/b']
    assert command[command.index('--output') + 1] == '/data/run7'
    assert '--use-sim-time' in command
    assert '--use-sim-time' not in record_command(Path('x'), ['/a'])

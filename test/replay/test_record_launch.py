"""record.launch.py, where the launch package is installed."""

import importlib.util
from pathlib import Path

import pytest

from oxygen_ros.replay.topics import record_command, topics_to_record
from oxygen_ros.ros.contract import load_contract

REASON = 'launch is not installed: it comes with a ROS 2 distribution, not with the wheels'
# not 'launch' alone, which the folder of that name could be taken for
actions = pytest.importorskip('launch.actions', reason=REASON)
launch = pytest.importorskip('launch')

FILE = Path(__file__).resolve().parents[2] / 'launch' / 'record.launch.py'


def command(**given):
    """The command line that the launch file starts with these arguments."""
    spec = importlib.util.spec_from_file_location('record_launch', FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    context = launch.LaunchContext()
    for entity in module.generate_launch_description().entities:
        if isinstance(entity, actions.DeclareLaunchArgument):
            default = ''.join(s.describe().strip("'") for s in entity.default_value or [])
            context.launch_configurations[entity.name] = given.get(entity.name, default)
    (action,) = module.start(context)
    return [context.perform_substitution(part) for word in action.cmd for part in word]


def test_by_arguments():
    topics = topics_to_record(
        load_contract('demo'), ['conversation', 'memory', 'subtask'], namespace='r1', clock=True
    )
    wanted = record_command(Path('/data/x'), [*topics, '/tf', '/scan'], sim_time=True)
    given = {'robot': 'demo', 'namespace': 'r1', 'use_sim_time': 'On', 'topics': '/tf /scan'}
    assert command(out='/data/x', **given) == wanted


def test_by_a_parameter_file(tmp_path):
    file = tmp_path / 'p.yaml'
    file.write_text('/**: {ros__parameters: {robot: demo, language_tasks: [poetry]}}')
    topics = topics_to_record(load_contract('demo'), ['poetry'])
    assert command(out='/data/x', params_file=str(file)) == record_command(Path('/data/x'), topics)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match='robot is empty'):
        command(out='/data/x')
    with pytest.raises(ValueError, match="use_sim_time is 'perhaps'"):
        command(out='/data/x', robot='demo', use_sim_time='perhaps')

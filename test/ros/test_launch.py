"""The launch files, where the launch packages are installed."""

import importlib.util
from pathlib import Path

import pytest
import yaml

REASON = 'launch_ros is not installed: it comes with a ROS 2 distribution, not with the wheels'
launch = pytest.importorskip('launch', reason=REASON)
pytest.importorskip('launch_ros', reason=REASON)

AUTOSTART = {'/**': {'ros__parameters': {'autostart': True}}}
FOLDER = Path(__file__).resolve().parents[2] / 'launch'


def load(name):
    spec = importlib.util.spec_from_file_location(name.replace('.', '_'), FOLDER / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(module, **given):
    """The actions that the launch file starts with these arguments."""
    context = launch.LaunchContext()
    for entity in module.generate_launch_description().entities:
        if isinstance(entity, launch.actions.DeclareLaunchArgument):
            default = ''.join(s.describe().strip("'") for s in entity.default_value or [])
            context.launch_configurations[entity.name] = given.get(entity.name, default)
    return module.start(context)


@pytest.mark.parametrize('file', sorted(p.name for p in FOLDER.glob('*.launch.py')))
def test_every_launch_file_describes_its_arguments(file):
    description = load(file).generate_launch_description()
    arguments = [
        e for e in description.entities if isinstance(e, launch.actions.DeclareLaunchArgument)
    ]
    assert arguments and all(argument.description for argument in arguments)


def parameters_of(module, **given):
    """What each parameter file of the node holds."""
    given = {**{name: module.DEFAULTS.get(name, '') for name in module.ARGUMENTS}, **given}
    return [yaml.safe_load(file.read_text()) for file in module.parameter_files(given)]


def test_only_arguments_that_were_given_come_on_top_of_the_file(tmp_path):
    file = tmp_path / 'p.yaml'
    file.write_text('/**: {ros__parameters: {seed: 1}}')
    module = load('oxygen.launch.py')
    first, theirs, ours = parameters_of(
        module, params_file=str(file), robot='007', autostart='Yes', namespace='/a/'
    )
    assert first == AUTOSTART
    assert theirs == {'/**': {'ros__parameters': {'seed': 1}}}
    assert ours == {'/a/oxygen': {'ros__parameters': {'robot': '007', 'autostart': True}}}


def test_without_arguments_the_node_starts_itself():
    assert parameters_of(load('oxygen.launch.py')) == [AUTOSTART]


@pytest.mark.parametrize('name', ['autostart', 'use_sim_time'])
@pytest.mark.parametrize(
    'text, value',
    [(text, True) for text in ('true', 'True', 'TRUE', '1', 'yes', 'on', ' On ')]
    + [(text, False) for text in ('false', 'False', '0', 'no', 'off', 'OFF')],
)
def test_flags_in_every_usual_spelling(name, text, value):
    _, ours = parameters_of(load('oxygen.launch.py'), **{name: text})
    assert ours['/oxygen']['ros__parameters'][name] is value


def test_a_bad_flag_or_file_is_named():
    module = load('oxygen.launch.py')
    with pytest.raises(ValueError, match="autostart is 'perhaps'"):
        start(module, autostart='perhaps')
    with pytest.raises(FileNotFoundError, match='/no/such'):
        start(module, params_file='/no/such.yaml')


@pytest.mark.parametrize(
    ('given', 'module'),
    [({}, 'oxygen_ros.tabletop.robot'), ({'recording': '/a/bag'}, 'oxygen_ros.demo.player')],
)
def test_the_demo_is_of_the_simulated_robot_or_of_a_recording(given, module):
    started = start(load('demo.launch.py'), **given)
    source = next(a for a in started if type(a) is launch.actions.ExecuteProcess)
    command = [''.join(part.text for part in word) for word in source.cmd]
    assert command[1:] == ['-m', module, *given.values()]

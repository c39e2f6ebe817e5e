"""Start the inference node.

    ros2 launch oxygen_ros oxygen.launch.py checkpoint:=/models/pi05 robot:=demo
    ros2 launch oxygen_ros oxygen.launch.py params_file:=my.yaml namespace:=robot1
    ros2 launch oxygen_ros oxygen.launch.py params_file:=my.yaml use_sim_time:=on log_level:=debug

An argument that is given beats the parameter file, and the file beats the defaults. They are the
node's, but for autostart: what is launched configures and activates itself.
Booleans may be written true, True, 1, yes or on, and false, False, 0, no or off.
"""

import json
import tempfile
from pathlib import Path

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch_ros.actions import Node

from launch import LaunchDescription

TRUE, FALSE = ('true', '1', 'yes', 'on'), ('false', '0', 'no', 'off')
ARGUMENTS = {
    'params_file': 'YAML file with parameters; empty: the defaults of config/oxygen.yaml',
    'checkpoint': 'folder of the checkpoint; empty: as in the parameter file',
    'robot': 'contract file, or the name of one in config/robots; empty: as in the file',
    'autostart': 'true or false: configure and activate by itself; empty: as in the file, or true',
    'use_sim_time': 'true or false: follow /clock (a bag is played); empty: as in the file',
    'namespace': 'namespace of the node and of all its relative topics',
    'log_level': 'debug, info, warn or error',
}
DEFAULTS = {'log_level': 'info'}
TEXTS, FLAGS = ('checkpoint', 'robot'), ('autostart', 'use_sim_time')


def flag(name, text):
    """True or False from any usual spelling."""
    word = text.strip().lower()
    if word not in TRUE + FALSE:
        raise ValueError(f'{name} is {text!r}: must be one of {", ".join(TRUE + FALSE)}')
    return word in TRUE


def parameter_files(given):
    """What later ones beat: autostart; the user's file; then the arguments that were given."""
    files = [written({'/**': {'ros__parameters': {'autostart': True}}})]
    if given['params_file']:
        files.append(Path(given['params_file']).expanduser())
        if not files[-1].is_file():
            raise FileNotFoundError(f'params_file {files[-1]} does not exist')
    overrides = {name: given[name] for name in TEXTS if given[name]}
    overrides.update({name: flag(name, given[name]) for name in FLAGS if given[name]})
    if overrides:
        files.append(override_file(given['namespace'], overrides))
    return files


def override_file(namespace, overrides):
    """A file for the node's full name: under '/**' a section of the user's file could beat it."""
    full_name = '/'.join(['', *filter(None, namespace.split('/')), 'oxygen'])
    return written({full_name: {'ros__parameters': overrides}})


def written(document):
    """A file with these sections."""
    with tempfile.NamedTemporaryFile(
        'w', prefix='oxygen_launch_', suffix='.yaml', delete=False
    ) as file:
        json.dump(document, file)
    return Path(file.name)


def start(context):
    """The node, with the arguments that were given on top of the file."""
    given = {name: context.launch_configurations[name] for name in ARGUMENTS}
    return [
        Node(
            package='oxygen_ros',
            executable='oxygen_node',
            name='oxygen',
            namespace=given['namespace'],
            parameters=[str(file) for file in parameter_files(given)],
            output='screen',
            arguments=['--ros-args', '--log-level', given['log_level']],
        )
    ]


def generate_launch_description():
    """Arguments, then the node."""
    arguments = [
        DeclareLaunchArgument(name, default_value=DEFAULTS.get(name, ''), description=description)
        for name, description in ARGUMENTS.items()
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start)])

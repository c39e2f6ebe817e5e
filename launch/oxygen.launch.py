"""Start the inference node.

    ros2 launch oxygen_ros oxygen.launch.py checkpoint:=/models/pi05 robot:=demo autostart:=true
    ros2 launch oxygen_ros oxygen.launch.py params_file:=my.yaml namespace:=robot1

An argument that is given beats the parameter file, and the file beats the node's defaults.
"""

from pathlib import Path

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch_ros.actions import Node

from launch import LaunchDescription

TRUE, FALSE = ('true', '1', 'yes', 'on'), ('false', '0', 'no', 'off')
ARGUMENTS = {
    'params_file': 'YAML file with parameters; empty: the defaults of config/oxygen.yaml',
    'checkpoint': 'folder of the checkpoint; empty: as in the parameter file',
    'robot': 'contract file, or the name of one in config/robots; empty: as in the file',
    'autostart': 'true or false: configure and activate by itself; empty: as in the file',
    'namespace': 'namespace of the node and of all its relative topics',
    'log_level': 'debug, info, warn or error',
}
DEFAULTS = {'log_level': 'info'}


def flag(text):
    """True or False from any usual spelling."""
    word = text.strip().lower()
    if word not in TRUE + FALSE:
        raise ValueError(f'autostart is {text!r}: must be one of {", ".join(TRUE + FALSE)}')
    return word in TRUE


def start(context):
    """The node, with the arguments that were given on top of the file."""
    given = {name: context.launch_configurations[name] for name in ARGUMENTS}
    overrides = {name: given[name] for name in ('checkpoint', 'robot') if given[name]}
    if given['autostart']:
        overrides['autostart'] = flag(given['autostart'])
    files = [given['params_file']] if given['params_file'] else []
    for file in files:
        if not Path(file).is_file():
            raise FileNotFoundError(f'params_file {file} does not exist')
    return [
        Node(
            package='oxygen_ros',
            executable='oxygen_node',
            name='oxygen',
            namespace=given['namespace'],
            parameters=[*files, overrides],
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

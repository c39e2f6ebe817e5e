"""Record what a later replay needs: all the node reads and answers, by the robot's contract.

    ros2 launch oxygen_ros record.launch.py out:=/data/run7 robot:=my_robot.yaml
    ros2 launch oxygen_ros record.launch.py out:=/data/run8 params_file:=my.yaml namespace:=robot1

Starts `ros2 bag record`; ctrl-C ends it. `oxygen_replay /data/run7 …` answers the recording again.
"""

from pathlib import Path

from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction

from launch import LaunchDescription
from oxygen_ros.replay.topics import record_command, topics_to_record
from oxygen_ros.ros import parameters
from oxygen_ros.ros.contract import load_contract

TRUE, FALSE = ('true', '1', 'yes', 'on'), ('false', '0', 'no', 'off')


def flag(name, text):
    """True or False from any usual spelling."""
    word = text.strip().lower()
    if word not in TRUE + FALSE:
        raise ValueError(f'{name} is {text!r}: must be one of {", ".join(TRUE + FALSE)}')
    return word in TRUE


def command(given):
    """The command line that records, with the arguments that were given."""
    values, _ = parameters.read_yaml(given['params_file']) if given['params_file'] else ({}, [])
    values = parameters.check_all(values)
    sim_time = flag('use_sim_time', given['use_sim_time'])
    topics = topics_to_record(
        load_contract(given['robot'] or values['robot']),
        values['language_tasks'],
        namespace=given['namespace'],
        node=given['node'],
        clock=sim_time,
    )
    out = Path(given['out']).expanduser()
    return record_command(out, [*topics, *given['topics'].split()], sim_time=sim_time)


def start(context):
    """ros2 bag record, ended as ctrl-C ends it, so that the bag is complete."""
    return [
        ExecuteProcess(
            cmd=command(context.launch_configurations),
            output='screen',
            sigterm_timeout='30',  # it may have much to write yet
        )
    ]


def generate_launch_description():
    """Arguments, then the recorder."""
    return LaunchDescription(
        [
            DeclareLaunchArgument('out', description='folder to make'),
            DeclareLaunchArgument('robot', default_value='', description='contract'),
            DeclareLaunchArgument(
                'params_file', default_value='', description='names the contract and the tasks'
            ),
            DeclareLaunchArgument('namespace', default_value='', description='of the node'),
            DeclareLaunchArgument('node', default_value='oxygen', description="the node's name"),
            DeclareLaunchArgument(
                'use_sim_time', default_value='false', description='follow and record /clock'
            ),
            DeclareLaunchArgument('topics', default_value='', description='more topics to record'),
            OpaqueFunction(function=start),
        ]
    )

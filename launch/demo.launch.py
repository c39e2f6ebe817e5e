"""Play a recording to the node: node and player, to be watched with ros2 topic echo or rqt.

    python3 -m oxygen_ros.checkpoint.random_pi05 /tmp/pi05 --size tiny --state-dim 7
    python3 -m oxygen_ros.demo.recording /tmp/recording
    ros2 launch oxygen_ros demo.launch.py checkpoint:=/tmp/pi05 recording:=/tmp/recording

With random weights the words mean nothing. `make demo` makes the files, starts the same
processes and shows a live view.
"""

import sys

from launch.actions import DeclareLaunchArgument, EmitEvent, ExecuteProcess, RegisterEventHandler
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from launch import LaunchDescription


def generate_launch_description():
    """Two processes that end together."""
    node = Node(
        package='oxygen_ros',
        executable='oxygen_node',
        name='oxygen',
        output='screen',
        parameters=[
            {
                # Always a text, also where a folder's name looks like a number.
                'checkpoint': ParameterValue(LaunchConfiguration('checkpoint'), value_type=str),
                'robot': ParameterValue(LaunchConfiguration('robot'), value_type=str),
                'autostart': True,
            }
        ],
    )
    player = ExecuteProcess(
        cmd=[sys.executable, '-m', 'oxygen_ros.demo.player', LaunchConfiguration('recording')],
        output='screen',
    )
    together = [
        RegisterEventHandler(
            OnProcessExit(target_action=process, on_exit=[EmitEvent(event=Shutdown())])
        )
        for process in (node, player)
    ]
    return LaunchDescription(
        [
            DeclareLaunchArgument('checkpoint', description='folder of a checkpoint'),
            DeclareLaunchArgument('recording', description='rosbag2 folder to play in a loop'),
            DeclareLaunchArgument('robot', default_value='demo', description='contract'),
            *together,
            node,
            player,
        ]
    )

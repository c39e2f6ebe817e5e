"""The small trained model and its simulated robot: two processes that end together.

    ros2 launch oxygen_ros demo.launch.py

Watch with `ros2 topic echo /oxygen/language/conversation` or rqt. With a recording it is played in
a loop to a checkpoint instead; random weights show the work, but their words mean nothing:

    python3 -m oxygen_ros.checkpoint.random_pi05 /tmp/pi05 --size tiny --state-dim 7
    python3 -m oxygen_ros.demo.recording /tmp/bag
    ros2 launch oxygen_ros demo.launch.py checkpoint:=/tmp/pi05 robot:=demo recording:=/tmp/bag

`make demo` starts the same processes and shows a live view.
"""

import sys
from pathlib import Path

from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    ExecuteProcess,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch_ros.actions import Node

from launch import LaunchDescription
from oxygen_ros.demo.prepare import node_parameters
from oxygen_ros.tabletop import ROBOT, SHIPPED

ARGUMENTS = {
    'checkpoint': (str(SHIPPED), 'folder of a checkpoint'),
    'robot': (ROBOT, 'contract: a file, or the name of one that is installed'),
    'recording': ('', 'rosbag2 folder to play in a loop instead of the simulated robot'),
}


def start(context):
    """Node, and robot or player."""
    checkpoint, robot, recording = (context.launch_configurations[name] for name in ARGUMENTS)
    node = Node(
        package='oxygen_ros',
        executable='oxygen_node',
        name='oxygen',
        output='screen',
        parameters=[node_parameters(Path(checkpoint), robot)],
    )
    module = ['oxygen_ros.demo.player', recording] if recording else ['oxygen_ros.tabletop.robot']
    source = ExecuteProcess(cmd=[sys.executable, '-m', *module], output='screen')
    together = [
        RegisterEventHandler(
            OnProcessExit(target_action=process, on_exit=[EmitEvent(event=Shutdown())])
        )
        for process in (node, source)
    ]
    return [*together, node, source]


def generate_launch_description():
    """Arguments, then the two processes."""
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start)])

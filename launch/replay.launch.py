"""Answer a recorded bag again and score the answers: JSON, and a page with pictures.

    ros2 launch oxygen_ros replay.launch.py bag:=/data/run7 params_file:=my.yaml html:=out.html
    ros2 launch oxygen_ros replay.launch.py bag:=/data/run7 params_file:=my.yaml timeline:=live

An argument that is given beats the parameter file, as in oxygen.launch.py. The same as
`ros2 run oxygen_ros oxygen_replay BAG --params FILE --json OUT`.
"""

from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction
from launch_ros.substitutions import ExecutableInPackage

from launch import LaunchDescription

# argument -> option of oxygen_replay
OPTIONS = {
    'params_file': '--params',
    'json': '--json',
    'html': '--html',
    'timeline': '--timeline',
    'checkpoint': '--checkpoint',
    'robot': '--robot',
}


def start(context):
    """oxygen_replay with the options that were given."""
    given = context.launch_configurations
    options = [
        word for name, option in OPTIONS.items() if given[name] for word in (option, given[name])
    ]
    # Not a Node action, which would add --ros-args: replay is no ROS node.
    replay = ExecutableInPackage('oxygen_replay', 'oxygen_ros')
    return [ExecuteProcess(cmd=[replay, given['bag'], *options], output='screen')]


def generate_launch_description():
    """Arguments, then the replay."""
    return LaunchDescription(
        [
            DeclareLaunchArgument('bag', description='rosbag2 folder'),
            DeclareLaunchArgument('params_file', default_value='', description='parameter file'),
            DeclareLaunchArgument('json', default_value='', description='where the report goes'),
            DeclareLaunchArgument('html', default_value='', description='where the page goes'),
            DeclareLaunchArgument(
                'timeline', default_value='', description='bag (the default) or live'
            ),
            DeclareLaunchArgument('checkpoint', default_value='', description='folder'),
            DeclareLaunchArgument('robot', default_value='', description='contract'),
            OpaqueFunction(function=start),
        ]
    )

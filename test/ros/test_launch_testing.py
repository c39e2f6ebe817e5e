"""The launch file started for real, where the launch packages are installed."""

import os
import unittest
from pathlib import Path

import pytest

REASON = 'launch_testing is not installed: it comes with a ROS 2 distribution, not with the wheels'
launch_testing = pytest.importorskip('launch_testing', reason=REASON)
pytest.importorskip('launch_ros', reason=REASON)

import rclpy  # noqa: E402
from launch.actions import IncludeLaunchDescription  # noqa: E402
from launch.launch_description_sources import PythonLaunchDescriptionSource  # noqa: E402
from launch_testing.actions import ReadyToTest  # noqa: E402
from launch_testing.asserts import assertExitCodes  # noqa: E402
from rcl_interfaces.srv import GetParameters  # noqa: E402
from ros_harness import poll, use_own_domain  # noqa: E402

from launch import LaunchDescription  # noqa: E402

use_own_domain()
FILE = Path(__file__).resolve().parents[2] / 'launch' / 'oxygen.launch.py'
# The sections that match the node in every way: the last of them would win without arguments.
PARAMS = """
/**: {ros__parameters: {robot: of_all, seed: 1, autostart: true}}
/**/oxygen: {ros__parameters: {robot: of_the_name, seed: 2}}
"""


@pytest.mark.launch_test
def generate_test_description():
    params = Path(os.environ.get('TMPDIR', '/tmp'), f'oxygen_launch_test_{os.getpid()}.yaml')
    params.write_text(PARAMS)
    arguments = {
        'params_file': str(params),
        'robot': 'demo',
        'autostart': 'Off',
        'namespace': 'robot7',
        'log_level': 'warn',
    }
    included = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(FILE)), launch_arguments=arguments.items()
    )
    return LaunchDescription([included, ReadyToTest()])


class TestParameters(unittest.TestCase):
    def test_arguments_beat_the_file_and_the_file_beats_the_defaults(self):
        context = rclpy.Context()
        rclpy.init(context=context)
        node = rclpy.create_node('asks', context=context)
        executor = rclpy.executors.SingleThreadedExecutor(context=context)
        executor.add_node(node)
        client = node.create_client(GetParameters, '/robot7/oxygen/get_parameters')
        poll(client.service_is_ready, 60, lambda: 'the launched node')
        names = ['robot', 'autostart', 'seed', 'max_rows']
        answer = client.call_async(GetParameters.Request(names=names))
        executor.spin_until_future_complete(answer, timeout_sec=20)
        robot, autostart, seed, max_rows = answer.result().values
        self.assertEqual(robot.string_value, 'demo')
        self.assertIs(autostart.bool_value, False)
        self.assertEqual(seed.integer_value, 2)
        self.assertEqual(max_rows.integer_value, 8)
        context.try_shutdown()


@launch_testing.post_shutdown_test()
class TestEnd(unittest.TestCase):
    def test_the_node_ends_cleanly(self, proc_info, proc_output):
        assertExitCodes(proc_info)
        for name in proc_info.process_names():
            text = ''.join(part.text.decode() for part in proc_output[name])
            self.assertNotIn('Traceback', text)

"""A robot for measurements: cameras and joint states at a fixed rate, in a process of its own.

python tools/robot_source.py --cameras camera0 camera1 camera2 --joints a b c --rate 30
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState

from oxygen_ros.ros import early, process
from oxygen_ros.ros.messages import time_msg


def main() -> int:
    """Publish until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--cameras', nargs='+', required=True, help='topics')
    parser.add_argument('--joints', nargs='+', required=True, help='names')
    parser.add_argument('--rate', type=float, default=30.0, help='frames per second')
    parser.add_argument('--size', type=int, nargs=2, default=(640, 480), help='width, height')
    given = parser.parse_args()
    early.settle_libraries()
    stop = process.stop_on_signals()
    process.init_rclpy([])
    node = rclpy.create_node('robot_source')
    robot = Robot(node, given.cameras, given.joints, *given.size)
    next_s = time.monotonic()
    while not stop.wait(max(next_s - time.monotonic(), 0.0)):
        robot.publish()
        next_s = max(next_s + 1.0 / given.rate, time.monotonic())
    rclpy.try_shutdown()
    return 0


class Robot:
    """rgb8 pictures of noise, each stamped right before it is published."""

    def __init__(
        self, node: Node, topics: Sequence[str], joints: Sequence[str], width: int, height: int
    ) -> None:
        self._clock = node.get_clock()
        self._cameras = [
            node.create_publisher(Image, topic, qos_profile_sensor_data) for topic in topics
        ]
        self._joints = node.create_publisher(JointState, 'joint_states', 10)
        self._image = Image(width=width, height=height, encoding='rgb8', step=3 * width)
        noise = np.random.default_rng(0).integers(0, 256, height * width * 3, np.uint8)
        self._image.data.frombytes(noise.tobytes())
        self._state = JointState(name=list(joints), position=[0.1] * len(joints))

    def publish(self) -> None:
        """One frame: joint states, then every camera."""
        self._state.header.stamp = self._now()
        self._joints.publish(self._state)
        for camera in self._cameras:
            self._image.header.stamp = self._now()
            camera.publish(self._image)

    def _now(self) -> Time:
        return time_msg(self._clock.now().nanoseconds)


if __name__ == '__main__':
    sys.exit(main())

"""A robot of its own process: publishes what the contract 'demo' names, with faults on demand."""

import sys
import time

import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros_harness import BASE, JOINTS, WRIST, image, joint_state, jpeg
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

PERIOD_S = 0.05
BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def main(faults, namespace):
    rclpy.init()
    node = rclpy.create_node('robot', namespace=namespace)
    raw = 'raw_wrist' in faults
    wrist = node.create_publisher(Image if raw else CompressedImage, WRIST.lstrip('/'), 5)
    base = node.create_publisher(Image, BASE.lstrip('/'), BEST_EFFORT)
    joints = node.create_publisher(JointState, 'joint_states', 5)
    lossy = 'lossy_instruction' in faults
    words = node.create_publisher(String, 'instruction', BEST_EFFORT if lossy else LATCHED)
    words.publish(String(data='pick up the cup'))
    names = JOINTS if 'few_joints' in faults else [*JOINTS[::-1], 'lift']
    print('ready', flush=True)
    while rclpy.ok():
        now_ns = node.get_clock().now().nanoseconds
        joints.publish(joint_state(now_ns, names))
        encoding = '16UC1' if 'depth' in faults else 'rgb8'
        base.publish(image(now_ns, encoding=encoding))
        if 'silent_wrist' not in faults:
            wrist.publish((image if raw else jpeg)(now_ns))
        if lossy:
            words.publish(String(data='pick up the cup'))
        time.sleep(PERIOD_S)


if __name__ == '__main__':
    main(sys.argv[2:], sys.argv[1])

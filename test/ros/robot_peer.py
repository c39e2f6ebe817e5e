"""A peer with three cameras that run by themselves, and its contract."""

import threading
import time

import yaml
from ros_harness import BASE, WRIST, Peer, image, joint_state, jpeg, poll, stamp
from sensor_msgs.msg import Image
from std_msgs.msg import Bool
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.ros import qos
from oxygen_ros.ros.contract import contract_path

THIRD = '/cameras/third/image_raw'
TRAJECTORY = '/arm/trajectory'


def write_contract(folder, joints=None, timing=None, **actions):
    tree = yaml.safe_load(contract_path('demo').read_text())
    tree['cameras']['right_wrist_0_rgb'] = {'topic': THIRD}
    tree['actions'] |= actions
    tree['timing'] |= timing or {}
    tree['joints'] = joints or {'gripper': {'max_velocity': 1000.0}}
    file = folder / 'robot.yaml'
    file.write_text(yaml.safe_dump(tree))
    return str(file)


class Robot(Peer):
    """A peer with three cameras that run by themselves; each can be switched off."""

    def __init__(self, node_name):
        super().__init__(node_name)
        self.third = self.node.create_publisher(Image, THIRD, 5)
        self.trajectories = self.hear(TRAJECTORY, JointTrajectory, qos.CHUNK)
        self.emergency = self.node.create_publisher(
            Bool, f'{node_name}/emergency_stop', qos.EMERGENCY[1]
        )
        self.on = {BASE, WRIST, THIRD}
        self.period_s = 1 / 15
        self.over = threading.Event()
        self.cameras = threading.Thread(target=self.run, daemon=True)
        self.cameras.start()

    def run(self):
        while not self.over.wait(self.period_s):
            self.send(self.on)

    def send(self, cameras):
        """Joints and these cameras at one stamp, which is returned."""
        now = self.now_ns()
        self.joints.publish(joint_state(now))
        if BASE in cameras:
            self.base.publish(image(now))
        if WRIST in cameras:
            self.wrist.publish(jpeg(now))
        if THIRD in cameras:
            self.third.publish(image(now, 40))
        return now

    def frame_all(self):
        """One frame of all cameras, and its chunk or some patience."""
        at = self.send({BASE, WRIST, THIRD})
        give_up = time.monotonic() + 0.3
        while time.monotonic() < give_up and not self.answered(at):
            time.sleep(0.01)

    def close(self):
        self.over.set()
        self.cameras.join()
        super().close()

    def steps(self):
        return self.heard[f'{self.name}/action']

    def trigger(self, service):
        return self.call(Trigger, f'{self.name}/{service}', Trigger.Request())

    def wait_for_motion(self):
        """Until steps of a chunk that came after now are published."""
        since = self.now_ns()

        def fresh():
            return any(not s.hold and stamp(s.source_stamp) > since for s in self.steps()[-3:])

        poll(fresh, 90, lambda: f'motion, {self.status()}')

"""A node process and a peer in the test process, which talk over Fast DDS."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from PIL import Image as Picture
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from oxygen_ros import msg
from oxygen_ros.ros import domain, qos
from oxygen_ros.ros.contract import contract_path
from oxygen_ros.ros.messages import time_msg

JOINTS = [
    'shoulder_pan',
    'shoulder_lift',
    'elbow',
    'wrist_pitch',
    'wrist_roll',
    'wrist_yaw',
    'gripper',
]
BASE, WRIST = '/cameras/base/image_raw', '/cameras/wrist/image_raw/compressed'
TASKS = ('conversation', 'memory', 'subtask')
WIDTH, HEIGHT = 64, 48


def patient_contract(folder):
    """The contract 'demo', for which joint positions and images are not old for a minute."""
    tree = yaml.safe_load(contract_path('demo').read_text())
    tree['timing'] |= {'image_max_age_ms': 60_000, 'state_max_age_ms': 60_000}
    file = folder / 'patient.yaml'
    file.write_text(yaml.safe_dump(tree))
    return str(file)


class NodeProcess:
    """python -m oxygen_ros.ros.node with these parameters, its output in a log file.

    faults: what its chunks shall be like, see faulty_node.
    """

    def __init__(self, folder, node_name='oxygen', faults=None, arguments=(), **parameters):
        self.log_path = folder / 'node.log'
        self.params = folder / 'params.yaml'
        # Threads that wait for each other on busy cores make a tiny model many times slower.
        parameters = {'cpu_threads': 1, **parameters}
        self.params.write_text(yaml.safe_dump({'/**': {'ros__parameters': parameters}}))
        faulty = (str(Path(__file__).with_name('faulty_node.py')), json.dumps(faults))
        command = [
            sys.executable,
            *(faulty if faults else ('-m', 'oxygen_ros.ros.node')),
            '--ros-args',
            '--params-file',
            str(self.params),
            '-r',
            f'__node:={node_name}',
            *arguments,
        ]
        with open(self.log_path, 'wb') as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    @property
    def log(self):
        return self.log_path.read_text(errors='replace')

    @property
    def alive(self):
        return self.process.poll() is None

    def wait_for_log(self, text, timeout=60):
        poll(lambda: text in self.log, timeout, lambda: f'{text!r} in the log:\n{self.log}')

    def stop(self, number=signal.SIGINT, timeout=30):
        """Exit status after the signal; raises TimeoutExpired after timeout."""
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def kill(self):
        if self.alive:
            self.process.kill()
            self.process.wait()


def poll(predicate, timeout, what):
    """The first true value of predicate; what() tells what was waited for in vain."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        assert time.monotonic() < deadline, f'waited {timeout} s for {what()}'
        time.sleep(0.01)


class Heard(list):
    """Messages of one topic. What was published before clear() does not count, however late.

    On a busy machine a message comes seconds after another topic's that was sent after it.
    """

    since_ns = 0

    def hear(self, message, info):
        """Callback of the subscription."""
        if info['source_timestamp'] > self.since_ns:
            self.append(message)

    def clear(self):
        self.since_ns = time.time_ns()
        super().clear()


class Peer:
    """Robot and user: publishes cameras, joints, requests; keeps all that comes back."""

    def __init__(self, node_name='oxygen', namespace='/'):
        self.name = node_name
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node('peer', context=self.context, namespace=namespace)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        create = self.node.create_publisher
        self.base = create(Image, BASE[1:], 5)  # in the namespace
        self.wrist = create(CompressedImage, WRIST[1:], 5)
        self.joints = create(JointState, 'joint_states', 5)
        self.instruction = create(String, 'instruction', qos.INSTRUCTION_LATCHED)
        self.request = create(msg.LanguageRequest, f'{node_name}/language/request', qos.REQUEST)
        self.cancel = create(String, f'{node_name}/language/cancel', qos.REQUEST)
        self.heard = {}
        self.sent = []  # stamps of the frames
        self.hear(f'{node_name}/status', msg.EngineStatus, qos.STATUS)
        self.hear(f'{node_name}/action_chunk', msg.ActionChunk, qos.CHUNK)
        self.hear(f'{node_name}/action', msg.ActionStep, qos.ACTION)
        for task in (*TASKS, 'refused'):
            self.hear(f'{node_name}/language/{task}', msg.LanguageToken, qos.TOKEN)
        self.thread = threading.Thread(target=self._spin, daemon=True)
        self.thread.start()

    def _spin(self):
        with contextlib.suppress(ExternalShutdownException):
            self.executor.spin()

    def close(self):
        self.context.try_shutdown()
        self.thread.join()
        self.node.destroy_node()

    def hear(self, topic, kind, profile):
        """Keep the messages of a topic, and subscribe only once."""
        if topic not in self.heard:
            self.heard[topic] = Heard()
            self.node.create_subscription(kind, topic, self.heard[topic].hear, profile)
        return self.heard[topic]

    def call(self, kind, name, request, timeout=60):
        """The answer of a service of the node."""
        client = self.node.create_client(kind, name)
        try:
            assert client.wait_for_service(timeout), f'no service {name}'
            future = client.call_async(request)
            poll(future.done, timeout, lambda: f'an answer of {name}')
            return future.result()
        finally:
            self.node.destroy_client(client)

    # The robot

    def now_ns(self):
        return self.node.get_clock().now().nanoseconds

    def frame(self, stamp_ns=None, shade=100):
        """Joints and both cameras at one stamp; returns the stamp."""
        stamp_ns = self.now_ns() if stamp_ns is None else stamp_ns
        self.sent.append(stamp_ns)
        self.joints.publish(joint_state(stamp_ns))
        self.base.publish(image(stamp_ns, shade))
        self.wrist.publish(jpeg(stamp_ns, shade))
        return stamp_ns

    def joints_first(self, send):
        """Call send() and wait until the node has its joint state: topics have no common order."""
        health = self.hear('/diagnostics', DiagnosticArray, qos.DIAGNOSTICS)

        def heard():
            entries = {entry.name.split(': ')[1]: entry for entry in health[-1].status}
            numbers = {p.key: p.value for p in entries['joint state'].values}
            return int(numbers['messages'])

        poll(lambda: health and any('joint state' in e.name for e in health[-1].status), 60,
             lambda: 'diagnostics')  # fmt: skip
        before = heard()
        send()
        poll(lambda: heard() > before, 60, lambda: f'the joint state, {health[-1].status}')

    def frames_until(self, predicate, timeout=60, what='a condition'):
        """Send a frame, wait for its chunk and for some words, until the predicate is true.

        Frames that come faster than they can be answered would leave no time for words.
        """

        def attempt():
            stamp_ns = self.frame()
            give_up = time.monotonic() + 0.5
            while time.monotonic() < give_up and not self.answered(stamp_ns):
                time.sleep(0.005)
            time.sleep(0.1)
            return predicate()

        return poll(attempt, timeout, lambda: f'{what}, status {self.status()}')

    def answered(self, stamp_ns):
        """Whether the chunk of the frame with this stamp has come."""
        return any(stamp(chunk.header.stamp) == stamp_ns for chunk in self.chunks()[-3:])

    # What came back

    def status(self):
        """The newest status or None."""
        heard = self.heard[f'{self.name}/status']
        return heard[-1] if heard else None

    def wait_for_state(self, state, timeout=60):
        """Wait until ~/status has a state, and return that message."""
        return poll(
            lambda: self.status() and self.status().state == state and self.status(),
            timeout,
            lambda: f'state {state}, status {self.status()}',
        )

    def wait_for_detail(self, text, timeout=60):
        """Wait until the detail of ~/status holds a text."""
        poll(
            lambda: self.status() and text in self.status().detail,
            timeout,
            lambda: f'{text!r}, status {self.status()}',
        )

    def answer(self, request_id, topic='conversation'):
        """Tokens of one request on one topic so far."""
        return [t for t in list(self.heard[f'{self.name}/language/{topic}']) if t.id == request_id]

    def ended(self, request_id, topic='conversation'):
        """The last token of a request, or None."""
        tokens = self.answer(request_id, topic)
        return tokens[-1] if tokens and tokens[-1].final else None

    def ask_long(self, count=4):
        """Long requests; several, because random weights may end an answer at once."""
        names = [f'long-{k}-{self.now_ns()}' for k in range(count)]
        for seed, name in enumerate(names):
            self.request.publish(
                msg.LanguageRequest(
                    id=name, prompt='Tell a story.', max_tokens=250, temperature=1.0, seed=seed
                )
            )
        return names

    def ends(self, names):
        """Reasons of those requests that have ended."""
        return [self.ended(name).reason for name in names if self.ended(name)]

    def chunks(self):
        return self.heard[f'{self.name}/action_chunk']


def joint_state(stamp_ns, names=None, positions=None):
    names = JOINTS if names is None else names
    positions = [0.1 * i for i in range(len(names))] if positions is None else positions
    message = JointState(name=names, position=positions)
    message.header.stamp = time_msg(stamp_ns)
    return message


def image(stamp_ns, shade=100, encoding='rgb8', step=3 * WIDTH, length=None):
    message = Image(height=HEIGHT, width=WIDTH, encoding=encoding, step=step)
    pixels = np.full(step * HEIGHT if length is None else length, shade, np.uint8)
    message.data.frombytes(pixels.tobytes())
    message.header.stamp = time_msg(stamp_ns)
    return message


def jpeg(stamp_ns, shade=100, data=None):
    if data is None:
        out = io.BytesIO()
        Picture.fromarray(np.full((HEIGHT, WIDTH, 3), shade, np.uint8)).save(out, 'JPEG')
        data = out.getvalue()
    message = CompressedImage(format='rgb8; jpeg compressed bgr8')
    message.data.frombytes(data)
    message.header.stamp = time_msg(stamp_ns)
    return message


def dropped(status):
    """reason -> count of a status message."""
    return {pair.key: int(pair.value) for pair in status.dropped}


def stamp(header_stamp):
    return header_stamp.sec * 1_000_000_000 + header_stamp.nanosec


def use_own_domain():
    """Keep these tests away from every other ROS graph; before the first rclpy.init."""
    domain.isolate(os.environ)

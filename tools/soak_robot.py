"""The soak test's robot and user: sends what can be used and what cannot, keeps what comes."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable

import node_setting
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from oxygen_ros import msg
from oxygen_ros.ros import qos
from oxygen_ros.ros.conversions import stamp_ns
from oxygen_ros.ros.messages import time_msg

WIDTH, HEIGHT = 64, 48
TASKS = ('conversation', 'memory', 'subtask')
NAME = 'oxygen'
FRAME_TIMEOUT_S = 2.0


class Robot:
    """Everything random comes from one seed; every message sent is counted."""

    def __init__(self, executor: SingleThreadedExecutor, seed: int) -> None:
        self._executor = executor
        self._node = node = rclpy.create_node('soak')
        executor.add_node(node)
        self._random = random.Random(seed)
        self._stamp_ns = 0
        self._away: dict[int, int] = {}  # camera -> frames for which it stays silent
        self.sent: Counter[str] = Counter()
        self.mischief: Counter[str] = Counter()
        self.chunks: dict[int, int] = {}  # stamp -> how often heard
        self.ended: dict[str, list[str]] = {}  # request -> reasons; '' for those without an id
        self.status: msg.EngineStatus | None = None
        self.statuses = 0
        self.diagnostics: dict[str, dict[str, str]] = {}
        reliable = QoSProfile(depth=10)
        create, hear = node.create_publisher, node.create_subscription
        self._cameras = [create(Image, topic, reliable) for topic in node_setting.TOPICS]
        self._joints = create(JointState, 'joint_states', reliable)
        self._instruction = create(String, 'instruction', qos.INSTRUCTION_LATCHED)
        self._request = create(msg.LanguageRequest, f'{NAME}/language/request', qos.REQUEST)
        self._cancel = create(String, f'{NAME}/language/cancel', qos.REQUEST)
        hear(msg.EngineStatus, f'{NAME}/status', self._on_status, qos.STATUS)
        hear(DiagnosticArray, '/diagnostics', self._on_diagnostics, qos.DIAGNOSTICS)
        hear(msg.ActionChunk, f'{NAME}/action_chunk', self._on_chunk, qos.CHUNK)
        hear(msg.LanguageToken, f'{NAME}/language/refused', self._on_refused, qos.TOKEN)
        for task in TASKS:
            hear(msg.LanguageToken, f'{NAME}/language/{task}', self._on_token, qos.TOKEN)

    # In time

    def wait(self, what: Callable[[], bool], timeout_s: float) -> bool:
        """Spin until it is true; False after the timeout."""
        deadline = time.monotonic() + timeout_s
        while not what():
            if time.monotonic() > deadline:
                return False
            self._executor.spin_once(timeout_sec=0.02)
        return True

    def wait_for_report(self) -> None:
        """Until the node has counted all that was sent before this call."""
        seen = self.statuses
        self.wait(lambda: self.statuses >= seen + 2, 5.0)

    def wait_until_settled(self) -> None:
        """Until nothing that was sent can still be on its way, on a busy machine too."""
        seen = self.statuses
        self.wait(lambda: self.statuses >= seen + 20, 20.0)

    def wait_until_heard(self, timeout_s: float) -> bool:
        """Send until the node hears every input, then begin to count; False after the timeout."""
        topics = [*self._cameras, self._joints, self._request, self._cancel]
        self.wait(lambda: all(t.get_subscription_count() for t in topics), timeout_s)
        deadline = time.monotonic() + timeout_s
        while not self._is_heard():
            if time.monotonic() > deadline:
                return False
            self._plain_frame()
        # The node changes to reliable readers within two seconds: a message that the old and the
        # new one hear is counted twice, once as used and once as repeated.
        matched = time.monotonic() + 4.0
        while time.monotonic() < matched:
            self._plain_frame()
        self.wait_until_settled()
        self.sent.clear()
        self.chunks.clear()
        return True

    def _is_heard(self) -> bool:
        inputs = [values for values in self.diagnostics.values() if 'messages' in values]
        return bool(inputs) and all(int(values['messages']) for values in inputs)

    def _plain_frame(self) -> None:
        self._stamp_ns = self._now_ns()
        self._send_joints(self._joint_state())
        for camera in self._cameras:
            camera.publish(self._image())
        self.wait_for_report()

    # The robot

    def frame(self) -> None:
        """Joint states and cameras, of which one may be out or send what cannot be used."""
        self._stamp_ns = max(self._now_ns(), self._stamp_ns + 1)
        self._publish_joints()
        if self._chance(0.02):
            self._away[self._random.randrange(len(self._cameras))] = self._random.randint(1, 8)
        bad = self._random.randrange(len(self._cameras)) if self._chance(0.05) else -1
        whole = bad < 0 and not self._away
        for number, camera in enumerate(self._cameras):
            if self._away.get(number):
                self._away[number] -= 1
                continue
            self.sent['images'] += 1
            camera.publish(self._bad_image() if number == bad else self._image())
        self._away = {number: left for number, left in self._away.items() if left}
        stamp = self._stamp_ns
        if whole:
            self.wait(lambda: stamp in self.chunks, FRAME_TIMEOUT_S)
        else:
            self.wait_for_report()

    def _publish_joints(self) -> None:
        if self._chance(0.03):
            self._count('bad joint states')
            state = self._joint_state()
            kind = self._random.randrange(3)
            if kind == 0:
                state.position[0] = math.nan
            if kind == 1:
                state.name = state.name[1:]
            if kind >= 1:
                state.position = state.position[1:]
            self._send_joints(state)
        self._send_joints(self._joint_state())

    def _joint_state(self) -> JointState:
        names = list(node_setting.JOINTS)
        state = JointState(name=names, position=[0.1] * len(names))
        state.header.stamp = time_msg(self._stamp_ns)
        return state

    def _send_joints(self, state: JointState) -> None:
        self.sent['joints'] += 1
        self._joints.publish(state)

    def _image(self) -> Image:
        message = Image(height=HEIGHT, width=WIDTH, encoding='rgb8', step=3 * WIDTH)
        message.data.frombytes(bytes([self._random.randrange(256)]) * (3 * WIDTH * HEIGHT))
        message.header.stamp = time_msg(self._stamp_ns)
        return message

    def _bad_image(self) -> Image:
        self._count('bad images')
        message = self._image()
        kind = self._random.randrange(5)
        if kind == 0:
            message.encoding = '16UC1'
        elif kind == 1:
            message.step = WIDTH
        elif kind == 2:
            message.data = message.data[: len(message.data) // 2]
        elif kind == 3:
            message.height = 0
        else:  # the frame before once more
            message.header.stamp = time_msg(max(self._last_frame_ns(), 1))
        return message

    def _last_frame_ns(self) -> int:
        return max(self.chunks, default=0)

    # Its user

    def ask(self) -> None:
        """One request; one in eight cannot be used."""
        number = self.sent['requests']
        self.sent['requests'] += 1
        request = msg.LanguageRequest(
            id=f'soak-{number}',
            task=self._random.choice(TASKS),
            prompt='what do you see?' * self._random.randint(0, 2),
            max_tokens=self._random.randint(1, 12),
            temperature=self._random.choice((0.0, 0.8)),
            priority=self._random.randint(0, 2),
        )
        if self._chance(0.1):
            request.deadline.nanosec = self._random.randint(1, 300_000_000)
        if self._chance(0.125):
            self._spoil(request)
        self.ended.setdefault(request.id, [])
        self._request.publish(request)

    def _spoil(self, request: msg.LanguageRequest) -> None:
        self._count('bad requests')
        kind = self._random.randrange(5)
        if kind == 0:
            request.max_tokens = self._random.choice((0, -1, 2**31 - 1))
        elif kind == 1:
            request.temperature = math.nan
        elif kind == 2:
            request.task = self._random.choice(('no_such_task', '../status', 'a' * 200))
        elif kind == 3:
            request.prompt = 'x' * 20_000
        else:
            request.id = ''
            self.sent['requests without an id'] += 1

    def cancel(self) -> None:
        """One that is open, one that is not, or (seldom) all."""
        self._count('cancels')
        open_now = [name for name, reasons in self.ended.items() if name and not reasons]
        choice = self._random.random()
        name = '' if choice < 0.05 else 'no-such-request'
        if choice > 0.15 and open_now:
            name = self._random.choice(open_now)
        self._cancel.publish(String(data=name))

    def cancel_all(self) -> None:
        """End what is still open."""
        self._cancel.publish(String())

    def mutter(self) -> None:
        """An instruction that cannot be used."""
        self._count('bad instructions')
        self._instruction.publish(String(data=self._random.choice(('', ' \n', 'y' * 20_000))))

    def open_requests(self) -> list[str]:
        """Ids that have not ended."""
        return [name for name, reasons in self.ended.items() if name and not reasons]

    # What comes back

    def _on_status(self, message: msg.EngineStatus) -> None:
        self.status = message
        self.statuses += 1

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for entry in message.status:
            part = entry.name.split(': ', 1)[1]
            self.diagnostics[part] = {pair.key: pair.value for pair in entry.values}

    def _on_chunk(self, message: msg.ActionChunk) -> None:
        stamp = stamp_ns(message.header)
        self.chunks[stamp] = self.chunks.get(stamp, 0) + 1

    def _on_token(self, message: msg.LanguageToken) -> None:
        if message.final:
            self.ended.setdefault(message.id, []).append(message.reason)

    def _on_refused(self, message: msg.LanguageToken) -> None:
        if message.task not in TASKS:  # the others come on their task's topic as well
            self._on_token(message)

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _count(self, what: str) -> None:
        self.mischief[what] += 1

"""Subscriptions of one configuration. All callbacks run on the executor's thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.timer import Timer
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from oxygen_ros import msg
from oxygen_ros.ros import qos
from oxygen_ros.ros.contract import Camera, Contract
from oxygen_ros.ros.conversions import (
    ConversionError,
    compressed_to_rgb,
    image_to_rgb,
    instruction_text,
    joint_vector,
    request_from_msg,
    stamp_ns,
)
from oxygen_ros.ros.diagnostics import Drops
from oxygen_ros.ros.observation_buffer import ObservationBuffer
from oxygen_ros.ros.outputs import Outputs
from oxygen_ros.ros.publishers import Reader, Wanted, rivals
from oxygen_ros.ros.worker import Worker

Convert = Callable[[Any], np.ndarray]
LOOK_PERIOD_S = 1.0


class Inputs:
    """Messages to observations, requests and cancels for the worker.

    Requests are heard from configure on, so that they can be refused with a reason; cameras,
    joints and the instruction only while open. on_jump(text): stamps have gone back.
    """

    def __init__(
        self,
        node: Node,
        contract: Contract,
        buffer: ObservationBuffer,
        worker: Worker,
        outputs: Outputs,
        drops: Drops,
        on_jump: Callable[[str], None],
    ) -> None:
        self._node = node
        self._contract = contract
        self._buffer = buffer
        self._worker = worker
        self._outputs = outputs
        self._drops = drops
        self._on_jump = on_jump
        self._readers: list[Reader] = []
        self._timer: Timer | None = None
        self._unreadable: dict[str, str] = {}  # topic -> why its newest message was dropped
        self._warned: set[str] = set()
        self.problems: list[str] = []  # with publishers and their messages, in words
        self._always = [
            node.create_subscription(
                msg.LanguageRequest, '~/language/request', self._on_request, qos.REQUEST
            ),
            node.create_subscription(String, '~/language/cancel', self._on_cancel, qos.REQUEST),
        ]

    def open(self) -> None:
        """Subscribe to what makes observations."""
        state, words = self._contract.state.topic, self._contract.instruction.topic
        both = (qos.INSTRUCTION_LATCHED, qos.INSTRUCTION_LIVE)
        for camera in self._contract.cameras:
            self._open_camera(camera)
        self._read(
            Wanted('joint state', state, JointState, (qos.JOINT_STATES,)), self._on_joint_state
        )
        self._read(Wanted('instruction', words, String, both, single=False), self._on_instruction)
        self._timer = self._node.create_timer(
            LOOK_PERIOD_S, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def close_open(self) -> None:
        """Undo open()."""
        timer, self._timer = self._timer, None
        if timer:
            self._node.destroy_timer(timer)
        while self._readers:
            self._readers.pop().close()
        self.problems, self._unreadable, self._warned = [], {}, set()

    def close(self) -> None:
        """Destroy every subscription."""
        self.close_open()
        while self._always:
            self._node.destroy_subscription(self._always.pop())

    def _open_camera(self, camera: Camera) -> None:
        compressed = camera.type == 'compressed'
        kind = CompressedImage if compressed else Image
        convert: Convert = compressed_to_rgb if compressed else image_to_rgb
        wanted = Wanted(f'camera {camera.slot}', camera.topic, kind, (qos.CAMERA,))
        self._read(wanted, lambda message: self._on_image(camera, convert, message))

    def _read(self, wanted: Wanted, callback: Callable[[Any], None]) -> None:
        self._readers.append(Reader(self._node, wanted, callback))

    def _look(self) -> None:
        """Compare what is published with what is read, now and then."""
        found = [problem for reader in self._readers for problem in reader.look()]
        found += rivals(self._node, self._outputs.moving)
        for problem in found:
            self._warn_once(problem)
        found += [f'{topic}: {text}' for topic, text in self._unreadable.items()]
        ahead = self._buffer.ahead()
        behind = self._buffer.behind(self._now_ns())
        for what, said in (('ahead', ahead), ('behind', behind)):
            for name, text in said.items():  # the text has an age, which changes
                self._warn_once(text, f'{what}: {name}')
        self.problems = [*found, *ahead.values()]

    def _warn_once(self, text: str, about: str = '') -> None:
        if (about or text) not in self._warned:
            self._warned.add(about or text)
            self._node.get_logger().warning(text)

    def _note_stamp(self, what: str, topic: str, stamp: int) -> None:
        if stamp == 0:
            self._warn_once(
                f'{what} on {topic}: stamps are 0, the time of arrival is used instead'
            )

    def _now_ns(self) -> int:
        return self._node.get_clock().now().nanoseconds

    def _on_image(self, camera: Camera, convert: Convert, message: Any) -> None:
        arrived_s = time.monotonic()
        try:
            rgb = convert(message)
        except ConversionError as error:
            self._unreadable[camera.topic] = str(error)
            self._drops.add(error.reason, camera.topic, str(error))
            return
        self._unreadable.pop(camera.topic, None)
        stamp, jumps = stamp_ns(message.header), self._buffer.events['time_jump']
        self._note_stamp(f'camera {camera.slot}', camera.topic, stamp)
        observation = self._buffer.add_image(camera.slot, rgb, stamp, self._now_ns())
        if self._buffer.events['time_jump'] > jumps:
            self._on_jump(f'stamps on {camera.topic} went back')
        if observation is not None:
            self._worker.observe(observation, arrived_s)

    def _on_joint_state(self, message: JointState) -> None:
        state = self._contract.state
        try:
            vector = joint_vector(message, state.names)
        except ConversionError as error:
            self._unreadable[state.topic] = str(error)
            self._drops.add(error.reason, state.topic, str(error))
            return
        self._unreadable.pop(state.topic, None)
        stamp = stamp_ns(message.header)
        self._note_stamp('joint state', state.topic, stamp)
        self._buffer.add_joint_state(vector, stamp, self._now_ns())

    def _on_instruction(self, message: String) -> None:
        try:
            self._buffer.set_instruction(instruction_text(message))
        except ConversionError as error:
            self._drops.add(error.reason, self._contract.instruction.topic, str(error))

    def _on_request(self, message: msg.LanguageRequest) -> None:
        try:
            request = request_from_msg(message)
        except ConversionError as error:
            self._outputs.refuse(message.id, message.task, str(error))
            return
        reason = ''
        if request.task not in self._outputs.tasks:
            reason = (
                f'task {request.task} has no topic: ask for one of '
                f'{", ".join(self._outputs.tasks)} or add it to language_tasks'
            )
        elif not self._readers:
            reason = 'the node is not active: activate it before asking'
        elif not self._worker.submit(request):
            reason = 'too many requests at once: ask again later'
        if reason:
            self._outputs.refuse(request.request_id, request.task, reason)

    def _on_cancel(self, message: String) -> None:
        if not self._worker.cancel(message.data):
            self._drops.add('cancel_overflow', '~/language/cancel', 'too many cancels at once')

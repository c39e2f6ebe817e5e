"""Subscriptions of one configuration. All callbacks run on the executor's thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
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
from oxygen_ros.ros.worker import Worker

Convert = Callable[[Any], np.ndarray]


class Inputs:
    """Messages to observations, requests and cancels for the worker.

    Requests are heard from configure on, so that they can be refused with a reason; cameras,
    joints and the instruction only while open.
    """

    def __init__(
        self,
        node: Node,
        contract: Contract,
        buffer: ObservationBuffer,
        worker: Worker,
        outputs: Outputs,
        drops: Drops,
    ) -> None:
        self._node = node
        self._contract = contract
        self._buffer = buffer
        self._worker = worker
        self._outputs = outputs
        self._drops = drops
        self._open: list[Any] = []
        self._always = [
            node.create_subscription(
                msg.LanguageRequest, '~/language/request', self._on_request, qos.REQUEST
            ),
            node.create_subscription(String, '~/language/cancel', self._on_cancel, qos.REQUEST),
        ]

    def open(self) -> None:
        """Subscribe to what makes observations."""
        for camera in self._contract.cameras:
            self._open_camera(camera)
        create, contract = self._node.create_subscription, self._contract
        self._open.append(
            create(JointState, contract.state.topic, self._on_joint_state, qos.JOINT_STATES)
        )
        # The latched reader's mismatch with a volatile writer is expected: the live one has it.
        quiet = SubscriptionEventCallbacks(incompatible_qos=lambda _: None)
        self._open.append(
            create(
                String,
                contract.instruction.topic,
                self._on_instruction,
                qos.INSTRUCTION_LATCHED,
                event_callbacks=quiet,
            )
        )
        self._open.append(
            create(String, contract.instruction.topic, self._on_instruction, qos.INSTRUCTION_LIVE)
        )

    def close_open(self) -> None:
        """Undo open()."""
        while self._open:
            self._node.destroy_subscription(self._open.pop())

    def close(self) -> None:
        """Destroy every subscription."""
        self.close_open()
        while self._always:
            self._node.destroy_subscription(self._always.pop())

    def _open_camera(self, camera: Camera) -> None:
        compressed = camera.type == 'compressed'
        kind = CompressedImage if compressed else Image
        convert: Convert = compressed_to_rgb if compressed else image_to_rgb
        self._open.append(
            self._node.create_subscription(
                kind,
                camera.topic,
                lambda message: self._on_image(camera, convert, message),
                qos.CAMERA,
            )
        )

    def _now_ns(self) -> int:
        return self._node.get_clock().now().nanoseconds

    def _on_image(self, camera: Camera, convert: Convert, message: Any) -> None:
        arrived_s = time.monotonic()
        try:
            rgb = convert(message)
        except ConversionError as error:
            self._drops.add(error.reason, camera.topic, str(error))
            return
        observation = self._buffer.add_image(
            camera.slot, rgb, stamp_ns(message.header), self._now_ns()
        )
        if observation is not None:
            self._worker.observe(observation, arrived_s)

    def _on_joint_state(self, message: JointState) -> None:
        state = self._contract.state
        try:
            vector = joint_vector(message, state.names)
        except ConversionError as error:
            self._drops.add(error.reason, state.topic, str(error))
            return
        self._buffer.add_joint_state(vector, stamp_ns(message.header), self._now_ns())

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
        elif not self._open:
            reason = 'the node is not active: activate it before asking'
        elif not self._worker.submit(request):
            reason = 'too many requests at once: ask again later'
        if reason:
            self._outputs.refuse(request.request_id, request.task, reason)

    def _on_cancel(self, message: String) -> None:
        if not self._worker.cancel(message.data):
            self._drops.add('cancel_overflow', '~/language/cancel', 'too many cancels at once')

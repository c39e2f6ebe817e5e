"""Does the running robot publish what the contract names, so that the node can hear it?

Subscribes as the node would, and publishes nothing.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import rclpy
from rclpy._rclpy_pybind11 import RCLError
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible
from rclpy.serialization import deserialize_message
from rclpy.signals import SignalHandlerOptions
from rclpy.topic_endpoint_info import TopicEndpointInfo
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from oxygen_ros.check.bag import check_name
from oxygen_ros.check.samples import COUNT, Samples, heard
from oxygen_ros.replay.sources import CAMERA_TYPES, STATE_TYPE, STRING_TYPE, Source, type_advice
from oxygen_ros.ros import qos
from oxygen_ros.ros.contract import Contract
from oxygen_ros.types import Finding, OxygenError, Verdict

NODE = 'oxygen'  # whose private names ~/x stand in a contract
_CLASSES = {
    CAMERA_TYPES['image']: Image,
    CAMERA_TYPES['compressed']: CompressedImage,
    STATE_TYPE: JointState,
    STRING_TYPE: String,
}


@dataclass
class Watch:
    """One input of the contract on the graph, and what came of it.

    profiles: the node hears a publisher that one of them fits. silent_ok: need not speak now.
    """

    topic: str
    kind: str
    source: Source
    profiles: tuple[QoSProfile, ...]
    required: bool
    samples: Samples
    silent_ok: bool = False
    arrivals_s: list[float] = field(default_factory=list)

    def take(self, raw: bytes) -> None:
        """Note a message's arrival; the first ones are read."""
        self.arrivals_s.append(time.monotonic())
        if len(self.arrivals_s) <= COUNT:
            self.samples.take(deserialize_message(raw, _CLASSES[self.kind]))

    @property
    def rate_hz(self) -> float:
        """Messages a second between the first and the last."""
        if len(self.arrivals_s) < 2:
            return 0.0
        return (len(self.arrivals_s) - 1) / (self.arrivals_s[-1] - self.arrivals_s[0])


def check_live(
    contract: Contract, instruction: str, namespace: str, seconds: float
) -> list[Finding]:
    """One line per input of the contract, after listening for so many seconds.

    instruction: the default until one is published. Raises OxygenError if ROS cannot start.
    """
    context = rclpy.Context()
    try:
        rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
        node = rclpy.create_node(
            f'oxygen_check_{os.getpid()}',
            context=context,
            namespace=namespace or None,
            start_parameter_services=False,
            enable_rosout=False,
        )
    except (RCLError, ValueError, rclpy.exceptions.InvalidNamespaceException) as error:
        context.try_shutdown()
        raise OxygenError(f'ROS cannot be started here: {error}') from error
    try:
        watches = [_subscribed(node, watch) for watch in _watches(node, contract, instruction)]
        _listen(node, context, seconds)
        return [
            _finding(watch, node.get_publishers_info_by_topic(watch.topic), seconds)
            for watch in watches
        ]
    finally:
        node.destroy_node()
        context.try_shutdown()


def _watches(node: Node, contract: Contract, instruction: str) -> list[Watch]:
    def watch(
        topic: str, kind: str, source: Source, profiles: tuple[QoSProfile, ...], **more: Any
    ) -> Watch:
        name = node.resolve_topic_name(topic.replace('~/', f'{NODE}/', 1))
        return Watch(name, kind, source, profiles, samples=Samples(contract, source), **more)

    cameras = [
        watch(
            camera.topic,
            CAMERA_TYPES[camera.type],
            Source(camera.type, camera.slot),
            (qos.CAMERA,),
            required=camera.required,
        )
        for camera in contract.cameras
    ]
    state = watch(
        contract.state.topic, STATE_TYPE, Source('state'), (qos.JOINT_STATES,), required=True
    )
    words = watch(
        contract.instruction.topic,
        STRING_TYPE,
        Source('instruction'),
        (qos.INSTRUCTION_LATCHED, qos.INSTRUCTION_LIVE),
        required=False,
        silent_ok=bool(instruction or contract.instruction.default),
    )
    return [*cameras, state, words]


def _subscribed(node: Node, watch: Watch) -> Watch:
    for profile in watch.profiles:
        # What does not fit is in the table; warnings of the middleware would only repeat it.
        quiet = SubscriptionEventCallbacks(use_default_callbacks=False)
        node.create_subscription(
            _CLASSES[watch.kind],
            watch.topic,
            watch.take,
            profile,
            raw=True,
            event_callbacks=quiet,
        )
    return watch


def _listen(node: Node, context: rclpy.Context, seconds: float) -> None:
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        executor.spin_once(timeout_sec=left)
    executor.shutdown()


def _finding(watch: Watch, publishers: list[TopicEndpointInfo], seconds: float) -> Finding:
    check, topic = check_name(watch.source), watch.topic
    types = {publisher.topic_type for publisher in publishers}
    right = [publisher for publisher in publishers if publisher.topic_type == watch.kind]
    refusals = [_refusal(publisher, watch.profiles) for publisher in right]
    count = len(watch.arrivals_s)
    if right and not all(refusals) and count:
        found = heard(topic, count, watch.rate_hz)
        return watch.samples.finding(check, found, watch.kind, watch.rate_hz)
    if not publishers:
        found, detail = 'no publisher', f'nobody publishes {topic}'
    elif not right:
        found = ', '.join(sorted(types))
        detail = f'{topic} is {found}: must be {watch.kind}{type_advice(types)}'
        return Finding(check, found, watch.kind, Verdict.MISFIT, detail)
    elif all(refusals):
        detail = f'{topic} cannot be heard: {"; ".join(refusals)}'
        return Finding(check, 'QoS that does not fit', watch.kind, Verdict.MISFIT, detail)
    else:
        found, detail = f'{topic}: silent', f'{topic} brought no message in {seconds:g} s'
    if watch.source.kind == 'instruction':
        return _no_instruction(watch, found, detail)
    verdict = Verdict.MISFIT if watch.required else Verdict.NOTE
    return Finding(check, found, watch.kind, verdict, detail)


def _no_instruction(watch: Watch, found: str, detail: str) -> Finding:
    """Instructions are published when there is something to do."""
    if watch.silent_ok:
        return Finding(check_name(watch.source), f'{found}, default used', watch.kind)
    detail += ': there is no default, so frames are dropped until an instruction comes'
    return Finding(check_name(watch.source), found, watch.kind, Verdict.NOTE, detail)


def _refusal(publisher: TopicEndpointInfo, profiles: tuple[QoSProfile, ...]) -> str:
    """Why none of the node's profiles hears a publisher, or ''."""
    reasons = []
    for profile in profiles:
        compatibility, reason = qos_check_compatible(publisher.qos_profile, profile)
        if compatibility != QoSCompatibility.ERROR:
            return ''
        reasons.append(reason)
    offered, asked = publisher.qos_profile, profiles[-1]
    return (
        f'{publisher.node_namespace.rstrip("/")}/{publisher.node_name} offers '
        f'{offered.reliability.name} and {offered.durability.name}, the node asks for '
        f'{asked.reliability.name} and {asked.durability.name} ({reasons[-1].strip()})'
    )

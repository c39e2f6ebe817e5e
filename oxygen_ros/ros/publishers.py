"""What the node reads: who publishes it, and why it would hear nothing of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import QoSCompatibility, QoSProfile, ReliabilityPolicy, qos_check_compatible
from rclpy.subscription import Subscription
from rclpy.topic_endpoint_info import TopicEndpointInfo
from sensor_msgs.msg import CompressedImage, Image

from oxygen_ros.ros import qos

MESSAGES_KNOWN = 64  # more than all profiles of one topic queue
# What to write in the contract when a camera's topic has the other image type.
_ADVICE = {
    'sensor_msgs/msg/Image': 'type: image',
    'sensor_msgs/msg/CompressedImage': 'type: compressed',
}


@dataclass(frozen=True)
class Wanted:
    """One input as the node subscribes to it. It is heard by one of the profiles, or not at all.

    single: messages of several publishers make no sense together.
    """

    what: str
    topic: str
    message: Any
    profiles: tuple[QoSProfile, ...]
    single: bool = True

    @property
    def kind(self) -> str:
        """package/msg/Type."""
        package, *_ = self.message.__module__.split('.')
        return f'{package}/msg/{self.message.__name__}'


def all_reliable(wanted: Wanted, publishers: Sequence[TopicEndpointInfo]) -> bool:
    """Whether there are publishers and each offers to resend what is lost."""
    right = [publisher for publisher in publishers if publisher.topic_type == wanted.kind]
    return bool(right) and all(
        publisher.qos_profile.reliability == ReliabilityPolicy.RELIABLE for publisher in right
    )


def problems(wanted: Wanted, publishers: Sequence[TopicEndpointInfo]) -> list[str]:
    """Sentences on what is wrong with the publishers of an input; none if there is none yet."""
    found = []
    right = [publisher for publisher in publishers if publisher.topic_type == wanted.kind]
    wrong = sorted({p.topic_type for p in publishers} - {wanted.kind})
    name = f'{wanted.what} on {wanted.topic}'
    if wrong:
        found.append(f'{name}: is published as {", ".join(wrong)}, must be {wanted.kind}')
        if wanted.message in (Image, CompressedImage) and wrong[0] in _ADVICE:
            found[-1] += f': set {_ADVICE[wrong[0]]} in the contract'
    for publisher in right:
        if refusal := _refusal(publisher, wanted.profiles):
            found.append(f'{name}: {refusal}')
    if wanted.single and len(right) > 1:
        found.append(f'{name}: {_mixed(right)}')
    return found


def rivals(node: Node, topics: Sequence[str]) -> list[str]:
    """Sentences on the node's own topics that somebody else publishes, too."""
    found = []
    for topic in topics:
        publishers = node.get_publishers_info_by_topic(topic)
        if len(publishers) > 1:
            found.append(
                f'{node.resolve_topic_name(topic)}: {_mixed(publishers)}: '
                'is this node running twice, or does another one move the robot?'
            )
    return found


def _mixed(publishers: Sequence[TopicEndpointInfo]) -> str:
    names = ', '.join(sorted(_name(publisher) for publisher in publishers))
    return f'has {len(publishers)} publishers ({names}), their messages are mixed'


def _refusal(publisher: TopicEndpointInfo, profiles: Sequence[QoSProfile]) -> str:
    """Why none of the node's profiles hears a publisher, or ''."""
    for profile in profiles:
        if qos_check_compatible(publisher.qos_profile, profile)[0] != QoSCompatibility.ERROR:
            return ''
    offered, asked = publisher.qos_profile, profiles[-1]
    return (
        f'{_name(publisher)} cannot be heard: it offers {offered.reliability.name} and '
        f'{offered.durability.name}, needed are {asked.reliability.name} and '
        f'{asked.durability.name}'
    )


def _name(publisher: TopicEndpointInfo) -> str:
    return f'{publisher.node_namespace.rstrip("/")}/{publisher.node_name}'


class Once:
    """Lets a message through that two subscriptions of a topic hear, the first time only.

    Known by when its writer published it, as which one, and what (if that matters).
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[object, ...]] = deque(maxlen=MESSAGES_KNOWN)

    def is_news(self, info: Mapping[str, Any], what: object = None) -> bool:
        """Whether a message with this rclpy MessageInfo has not been here yet."""
        written_ns = info['source_timestamp']
        key = (written_ns, info['publication_sequence_number'], what)
        if written_ns and key in self._seen:
            return False
        self._seen.append(key)
        return True


class Reader:
    """One input, subscribed until close(). look() keeps it matched to its publishers.

    Where every publisher is reliable a best-effort reader becomes reliable, so that nothing is
    lost on the way, and best effort again when another kind of publisher comes.
    """

    def __init__(self, node: Node, wanted: Wanted, callback: Callable[[Any], None]) -> None:
        self.wanted = wanted
        self._node = node
        self._callback = callback
        self._once = Once()
        self._replaced: list[Subscription] = []  # heard until the new one hears something
        self._generation = 0
        self._reliable = all_reliable(wanted, self._publishers())
        self._current = self._subscribe()

    def look(self) -> list[str]:
        """What is wrong with the publishers now."""
        publishers = self._publishers()
        reliable = all_reliable(self.wanted, publishers)
        if publishers and reliable != self._reliable and len(self.wanted.profiles) == 1:
            self._reliable = reliable
            self._replaced += self._current
            self._current = self._subscribe()
        return problems(self.wanted, publishers)

    def close(self) -> None:
        """Destroy every subscription."""
        self._destroy(self._current)
        self._destroy(self._replaced)

    def _publishers(self) -> list[TopicEndpointInfo]:
        return self._node.get_publishers_info_by_topic(self.wanted.topic)

    def _subscribe(self) -> list[Subscription]:
        # What cannot be heard is in look(); the middleware's warnings would only repeat it, or
        # name one of two profiles although the other one hears.
        quiet = SubscriptionEventCallbacks(use_default_callbacks=False)
        self._generation += 1
        wanted = self.wanted
        adapts = self._reliable and len(wanted.profiles) == 1
        return [
            self._node.create_subscription(
                wanted.message,
                wanted.topic,
                partial(self._on_message, self._generation),
                qos.reliable(profile) if adapts else profile,
                event_callbacks=quiet,
            )
            for profile in wanted.profiles
        ]

    def _on_message(self, generation: int, message: Any, info: Mapping[str, Any]) -> None:
        if self._replaced and generation == self._generation:
            self._destroy(self._replaced)
        if self._once.is_news(info):
            self._callback(message)

    def _destroy(self, subscriptions: list[Subscription]) -> None:
        while subscriptions:
            self._node.destroy_subscription(subscriptions.pop())

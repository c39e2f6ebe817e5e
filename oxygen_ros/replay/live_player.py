"""Plays a bag's inputs on the contract's topics in real time, with the bag's time on /clock."""

from __future__ import annotations

import importlib
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from tqdm import tqdm

from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.sources import Source
from oxygen_ros.ros import qos
from oxygen_ros.ros.contract import Contract
from oxygen_ros.ros.messages import time_msg

CLOCK_PERIOD_S = 0.005
PRIVATE = '/oxygen/'  # '~/' of the node that is started


class Player:
    """Publishers for the inputs and /clock. now_ns is the bag's time, finer than /clock is.

    taken: stamp of an image -> record time of the last image with it. problem: of a bag that
    could not be read to its end.
    """

    def __init__(
        self, node: Node, bag: Bag, inputs: dict[str, Source], contract: Contract
    ) -> None:
        self._bag = bag
        self._inputs = inputs
        types = {topic.name: topic.type for topic in bag.topics}
        self._publishers: dict[str, Publisher] = {
            topic: node.create_publisher(
                _message_class(types[topic]), _live_name(source, contract), _qos(source)
            )
            for topic, source in inputs.items()
        }
        self._clock = node.create_publisher(Clock, '/clock', QoSProfile(depth=1))
        self._began_s = 0.0
        self._said_ns = 0
        self.taken: dict[int, int] = {}
        self.asked: dict[str, int] = {}  # request id -> bag's time of its publication

    @property
    def now_ns(self) -> int:
        """The bag's time now; its begin before play()."""
        if not self._began_s:
            return self._bag.start_ns
        return self._bag.start_ns + round((time.monotonic() - self._began_s) * 1e9)

    def heard(self) -> bool:
        """Whether the node listens to every camera, which it does only while it serves."""
        return all(
            self._publishers[topic].get_subscription_count()
            for topic, source in self._inputs.items()
            if source.slot or source.kind == 'state'
        )

    def show_time(self) -> None:
        """The bag's time on /clock; never backwards."""
        self._said_ns = max(self._said_ns, self.now_ns)
        self._clock.publish(Clock(clock=time_msg(self._said_ns)))

    def play(self, stop: threading.Event, hidden: bool | None) -> Iterator[tuple[str, int, bytes]]:
        """Publish each message when it is due and hand on its topic, record time and bytes.

        Ends early when stop is set. Raises OxygenError where the bag cannot be read on.
        """
        self._began_s = time.monotonic()
        seconds = (self._bag.end_ns - self._bag.start_ns) / 1e9
        form = '{desc} {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s'
        with tqdm(
            total=seconds, bar_format=form, desc=self._bag.name, leave=False, disable=hidden
        ) as bar:
            for topic, time_ns, data in self._bag.raw(self._inputs):
                if not self.wait_until(time_ns, stop):
                    return
                self._note(topic, time_ns, data)
                self._publishers[topic].publish(data)
                bar.update((time_ns - self._bag.start_ns) / 1e9 - bar.n)
                yield topic, time_ns, data

    def wait_until(self, time_ns: int, stop: threading.Event) -> bool:
        """Let the bag's time pass on /clock; False if stop is set meanwhile."""
        while True:
            self.show_time()
            wait_s = (time_ns - self.now_ns) / 1e9
            if wait_s <= 0:
                return not stop.is_set()
            if stop.wait(min(wait_s, CLOCK_PERIOD_S)):
                return False

    def _note(self, topic: str, time_ns: int, data: bytes) -> None:
        if self._inputs[topic].slot:
            self.taken[header_stamp_ns(data) or time_ns] = time_ns


def header_stamp_ns(data: bytes) -> int:
    """Stamp of a serialised message that begins with a header, 0 if it is too short for one."""
    if len(data) < 12:
        return 0
    sec, nanosec = struct.unpack_from('<iI' if data[1] == 1 else '>iI', data, 4)
    return int(sec) * 1_000_000_000 + int(nanosec)


def _live_name(source: Source, contract: Contract) -> str:
    """The name under which the node listens, whatever it was in the recording."""
    names = {camera.slot: camera.topic for camera in contract.cameras}
    names |= {
        'state': contract.state.topic,
        'instruction': contract.instruction.topic,
        'request': '~/language/request',
        'cancel': '~/language/cancel',
    }
    name = names[source.slot or source.kind]
    return PRIVATE + name[2:] if name.startswith('~/') else '/' + name.lstrip('/')


def _qos(source: Source) -> QoSProfile:
    if source.kind == 'instruction':
        return qos.INSTRUCTION_LATCHED
    return qos.REQUEST if source.kind in ('request', 'cancel') else QoSProfile(depth=10)


def _message_class(name: str) -> Any:
    """'package/msg/Name' -> its class."""
    package, _, kind = name.split('/')
    return getattr(importlib.import_module(f'{package}.msg'), kind)

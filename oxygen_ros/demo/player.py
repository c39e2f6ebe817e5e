"""Plays a recording in a loop on real topics, at its own pace and stamped as if it were live.

    python -m oxygen_ros.demo.player RECORDING

Every stamp is moved by the same amount, so that the recording begins now; ids of language
requests get the number of the loop, because an id must not be in use twice.
"""

from __future__ import annotations

import argparse
import importlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import rclpy
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from rosbags.interfaces import Connection
from rosbags.rosbag2 import Reader

from oxygen_ros.ros import process
from oxygen_ros.ros.conversions import stamp_ns
from oxygen_ros.ros.messages import time_msg

POLL_S = 0.05


class Player:
    """Publishers for every topic of a recording, and the loop that feeds them."""

    def __init__(self, node: Node, reader: Reader, stop: threading.Event) -> None:
        self._node = node
        self._reader = reader
        self._stop = stop
        self._kinds = {c.msgtype: _message_class(c.msgtype) for c in reader.connections}
        self._publishers: Mapping[str, Publisher] = {
            c.topic: node.create_publisher(self._kinds[c.msgtype], c.topic, _qos(c))
            for c in reader.connections
        }
        self._period_ns = reader.duration

    def wait_for_listeners(self) -> None:
        """Until every camera topic has a subscription: the node has it only while it serves."""
        cameras = [
            self._publishers[c.topic]
            for c in self._reader.connections
            if c.msgtype.endswith('Image')
        ]
        while not all(p.get_subscription_count() for p in cameras):
            if self._stop.wait(POLL_S):
                return

    def run(self) -> None:
        """Play until stopped."""
        begin_s, begin_ns = time.monotonic(), self._node.get_clock().now().nanoseconds
        for loop, connection, offset_ns, data in self._messages():
            wait_s = begin_s + offset_ns / 1e9 - time.monotonic()
            if self._stop.wait(max(wait_s, 0.0)):
                return
            message = deserialize_message(data, self._kinds[connection.msgtype])
            move_ns = begin_ns + loop * self._period_ns - self._reader.start_time
            _make_live(message, move_ns, loop)
            self._publishers[connection.topic].publish(message)

    def _messages(self) -> Iterator[tuple[int, Connection, int, bytes]]:
        """Loop, connection, ns since the first loop began, and bytes; for ever."""
        loop = 0
        while True:
            for connection, time_ns, data in self._reader.messages():
                offset_ns = loop * self._period_ns + time_ns - self._reader.start_time
                yield loop, connection, offset_ns, data
            loop += 1


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Play until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog='oxygen_ros.demo.player', description=__doc__)
    parser.add_argument('recording', type=Path)
    given = parser.parse_args(argv)
    stop = process.stop_on_signals()
    process.init_rclpy([])
    node = rclpy.create_node('player')
    with Reader(given.recording) as reader:
        player = Player(node, reader, stop)
        player.wait_for_listeners()
        player.run()
    process.leave(node)


def _make_live(message: Any, move_ns: int, loop: int) -> None:
    if hasattr(message, 'header'):
        message.header.stamp = time_msg(stamp_ns(message.header) + move_ns)
    elif hasattr(message, 'max_tokens'):
        message.id = f'{message.id}#{loop}'


def _message_class(name: str) -> type:
    """'package/msg/Name' -> its class."""
    package, _, kind = name.split('/')
    return getattr(importlib.import_module(f'{package}.msg'), kind)


def _qos(connection: Connection) -> QoSProfile:
    """What the recorded publisher offered."""
    offered: Any = getattr(connection.ext, 'offered_qos_profiles', None)
    profile = QoSProfile(depth=10)
    if offered:
        profile.reliability = ReliabilityPolicy[offered[0].reliability.name]
        profile.durability = DurabilityPolicy[offered[0].durability.name]
    return profile


if __name__ == '__main__':
    main()

"""Records what a later replay needs, where there is no `ros2 bag`: the wheels have none.

    python -m oxygen_ros.replay.record OUT --params my.yaml

Ends with SIGINT or SIGTERM, or after --seconds. On a ROS 2 distribution use record.launch.py,
which starts `ros2 bag record` with the same topics.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosbags.interfaces import Connection
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import get_types_from_msg

from oxygen_ros.replay.bag import typestore
from oxygen_ros.replay.topics import topics_to_record
from oxygen_ros.ros import process
from oxygen_ros.ros.arguments import add_arguments, values_of
from oxygen_ros.ros.contract import load_contract
from oxygen_ros.types import OxygenError

LOOK_PERIOD_S = 0.1
DEPTH = 100
# Names of IDL in get_fields_and_field_types -> names in .msg files.
IDL = {'boolean': 'bool', 'double': 'float64', 'float': 'float32', 'octet': 'byte'}


class Recorder:
    """Subscribes to each topic as soon as somebody publishes it; messages go to the bag raw.

    count: messages written. All callbacks run on the executor's thread.
    """

    def __init__(self, node: Node, writer: Writer, topics: Sequence[str]) -> None:
        self.count = 0
        self._node = node
        self._writer = writer
        self._store = typestore()
        self._missing = set(topics)
        self._timer = node.create_timer(LOOK_PERIOD_S, self.look)

    @property
    def missing(self) -> list[str]:
        """Topics that nobody has published so far."""
        return sorted(self._missing)

    def look(self) -> None:
        """Subscribe to topics that have come up."""
        for topic, kinds in self._node.get_topic_names_and_types():
            if topic not in self._missing or not self._node.count_publishers(topic):
                continue
            self._missing.discard(topic)
            message = _message_class(kinds[0])
            connection = self._connection(topic, kinds[0], message)
            self._node.create_subscription(
                message,
                topic,
                lambda data, connection=connection: self._write(connection, data),
                self._qos(topic),
                raw=True,
            )

    def _write(self, connection: Connection, data: bytes) -> None:
        self._writer.write(connection, self._node.get_clock().now().nanoseconds, data)
        self.count += 1

    def _connection(self, topic: str, kind: str, message: Any) -> Connection:
        if kind not in self._store.types:
            self._store.register(get_types_from_msg(definition(message), kind))
        return self._writer.add_connection(topic, kind, typestore=self._store)

    def _qos(self, topic: str) -> QoSProfile:
        """What hears every publisher: reliable and latched only where all of them are."""
        offered = [p.qos_profile for p in self._node.get_publishers_info_by_topic(topic)]
        profile = QoSProfile(depth=DEPTH)
        if any(qos.reliability != ReliabilityPolicy.RELIABLE for qos in offered):
            profile.reliability = ReliabilityPolicy.BEST_EFFORT
        if offered and all(q.durability == DurabilityPolicy.TRANSIENT_LOCAL for q in offered):
            profile.durability = DurabilityPolicy.TRANSIENT_LOCAL
        return profile


def definition(message: Any) -> str:
    """The .msg text of a message class, without comments and defaults."""
    lines = []
    for name, kind in message.get_fields_and_field_types().items():
        inner = re.fullmatch(r'sequence<(.+)>', kind)
        base = inner.group(1) if inner else kind
        lines.append(f'{IDL.get(base, base)}{"[]" if inner else ""} {name}')
    return '\n'.join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Record until stopped; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        values, _ = values_of(arguments)
        contract = load_contract(values['robot'])
        topics = topics_to_record(
            contract, values['language_tasks'], namespace=arguments.namespace,
            node=arguments.node, clock=arguments.clock,
        )  # fmt: skip
        _record(Path(arguments.out).expanduser(), topics, arguments.seconds)
    except OxygenError as error:
        print(f'record: {error}', file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='oxygen_ros.replay.record', description='Record what a later replay needs.'
    )
    parser.add_argument('out', help='folder to make')
    parser.add_argument('--seconds', type=float, default=float('inf'))
    parser.add_argument('--node', default='oxygen', help="the node's name")
    parser.add_argument('--clock', action='store_true', help='/clock too')
    add_arguments(parser)
    return parser


def _record(out: Path, topics: Sequence[str], seconds: float) -> None:
    if out.exists():
        raise OxygenError(f'recording {out} exists already: remove it or give another path')
    stop = process.stop_on_signals()
    process.init_rclpy([])
    node = rclpy.create_node('oxygen_record')
    writer = Writer(out, version=9, storage_plugin=StoragePlugin.MCAP)
    writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    with writer:
        recorder = Recorder(node, writer, topics)
        spinner = process.Spinner(node, stop)
        stop.wait(min(seconds, threading.TIMEOUT_MAX))
        spinner.close()
    print(f'{out}: {recorder.count} messages', file=sys.stderr)
    if recorder.missing:
        print(f'never published: {", ".join(recorder.missing)}', file=sys.stderr)
    if not recorder.count:
        shutil.rmtree(out)
        raise OxygenError('nothing was published on any of the topics: nothing is recorded')
    process.leave(node)


def _message_class(name: str) -> Any:
    """'package/msg/Name' -> its class."""
    package, _, kind = name.split('/')
    return getattr(importlib.import_module(f'{package}.msg'), kind)


if __name__ == '__main__':
    sys.exit(main())

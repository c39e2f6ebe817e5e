"""Reads rosbag2 recordings (sqlite3 and mcap) without ROS; every failure is an OxygenError."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from rosbags.interfaces import Connection, MessageDefinitionFormat
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.base import TypesysError
from rosbags.typesys.store import Typestore

from oxygen_ros.replay.cut import CutMcap
from oxygen_ros.replay.cut_sqlite import CutSqlite
from oxygen_ros.replay.record_order import StepsBack, steps_back
from oxygen_ros.types import OxygenError

REQUEST_TYPE = 'oxygen_ros/msg/LanguageRequest'
# Equal to msg/LanguageRequest.msg, which is not always beside the installed modules.
REQUEST_TEXT = """
string id
string task
string prompt
int32 max_tokens 64
float32 temperature 0.0
float32 top_p 1.0
int64 seed 0
int32 priority 0
builtin_interfaces/Duration deadline
"""


def typestore() -> Typestore:
    """ROS 2 Jazzy's messages and the package's LanguageRequest."""
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg(REQUEST_TEXT, REQUEST_TYPE))
    return store


class Topic(NamedTuple):
    """A topic of the bag; type as 'package/msg/Name'."""

    name: str
    type: str
    messages: int


class Message(NamedTuple):
    """One message. value is None when its bytes are no message of its type; problem says why."""

    topic: str
    time_ns: int
    value: Any
    problem: str = ''


class Bag:
    """An open recording, to be used in a with block. Times are the bag's record times in ns.

    problem: why only a part of it can be read, or ''.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.problem = ''
        self._store = typestore()
        self._reader = self._open_or_salvage()
        _learn(self._store, self._reader.connections)
        self.count = self._reader.message_count
        self.start_ns = self._reader.start_time
        # rosbags ends one past the last message
        self.end_ns = self._reader.end_time - 1
        self.topics = _topics(self._reader.connections)
        if not self.count:
            self._reader.close()
            raise OxygenError(
                f'bag {self.path} is empty: it has {len(self.topics)} topics and no messages; '
                'record it again'
            )

    def _open_or_salvage(self) -> Reader | CutMcap:
        """What is whole of a single file that was cut off, else the reader of all."""
        try:
            return _open(self.path)
        except OxygenError as error:
            if error.__cause__ is None:  # it is no bag at all
                raise
            files = [self.path] if self.path.is_file() else _files(self.path)
            if len(files) != 1:
                raise
            salvage = CutMcap if files[0].suffix == '.mcap' else CutSqlite
            try:
                found = salvage(files[0])
            except Exception:  # nothing of it is whole: the first error says more
                raise error from None
            if not found.message_count:
                found.close()
                raise
            self.problem = (
                f'{error}. What is whole of it was read: {found.message_count} messages, '
                f'{(found.end_time - found.start_time) / 1e9:.2f} s'
            )
            return found

    def __enter__(self) -> Bag:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.close()

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.resolve().name

    def listing(self) -> str:
        """Topics, types and counts in one line, for error texts."""
        return ', '.join(f'{t.name} ({t.type}, {t.messages})' for t in self.topics)

    def steps_back(self) -> dict[str, StepsBack]:
        """Topic -> how its record times go back in the file, of those that do."""
        try:
            return steps_back(self._reader)
        except Exception as error:  # a reader of damaged files raises whatever it meets
            raise _damaged(self.path, error) from error

    def messages(self, topics: Collection[str]) -> Iterator[Message]:
        """Messages of these topics in the order of their record times."""
        for connection, time_ns, data in self._read(topics):
            yield self._message(connection, time_ns, data)

    def _read(self, topics: Collection[str]) -> Iterator[tuple[Connection, int, bytes]]:
        wanted = [c for c in self._reader.connections if c.topic in topics]
        raw = self._reader.messages(wanted)
        while True:
            try:
                connection, time_ns, data = next(raw)
            except StopIteration:
                return
            except Exception as error:  # a reader of damaged files raises whatever it meets
                raise _damaged(self.path, error) from error
            yield connection, time_ns, data

    def raw(self, topics: Collection[str]) -> Iterator[tuple[str, int, bytes]]:
        """Topic, record time in ns and bytes of the same messages."""
        for connection, time_ns, data in self._read(topics):
            yield connection.topic, time_ns, data

    def decoded(self, topic: str, data: bytes) -> Any:
        """One of raw()'s messages, or None if its bytes are none."""
        connection = next(c for c in self._reader.connections if c.topic == topic)
        return self._message(connection, 0, data).value

    def _message(self, connection: Connection, time_ns: int, data: bytes) -> Message:
        try:
            value = _deserialize(self._store, data, connection.msgtype)
        except Exception as error:  # bytes that are no CDR of this type fail in many ways
            text = f'{len(data)} bytes are no {connection.msgtype}: {_text(error)}'
            return Message(connection.topic, time_ns, None, text)
        return Message(connection.topic, time_ns, value)


def _learn(store: Typestore, connections: Collection[Connection]) -> None:
    """Read this package's messages as they were when they were recorded, if the bag says how."""
    for connection in connections:
        definition = connection.msgdef
        if (
            connection.msgtype.startswith('oxygen_ros/')
            and connection.msgtype not in store.types
            and definition.format is MessageDefinitionFormat.MSG
        ):
            try:
                found = get_types_from_msg(definition.data, connection.msgtype)
            except TypesysError:  # its messages will be named as unusable
                continue
            new = {name: fields for name, fields in found.items() if name not in store.types}
            store.register(new)


def _deserialize(store: Typestore, data: bytes, kind: str) -> Any:
    """The message at the start of data. What follows it is slack, which ROS writers may leave.

    The typestore's own deserialize_cdr refuses more than 3 bytes of slack; rclpy writes 8 behind
    a JointState without velocities.
    """
    if data[:2] not in (b'\0\0', b'\0\1'):
        raise ValueError(f'they begin with {data[:4].hex()}, which is no CDR header')
    definition = store.get_msgdef(kind)
    little = data[1] == 1
    decode = definition.deserialize_cdr_le if little else definition.deserialize_cdr_be
    # of a bytearray, so that arrays in the message are writable, as torch wants them
    return decode(memoryview(bytearray(data))[4:], 0, definition.cls, store)[0]


def _open(path: Path) -> Reader:
    if not path.exists():
        raise OxygenError(f'bag {path} does not exist: give a rosbag2 folder or a .mcap file')
    if path.is_dir() and not (path / 'metadata.yaml').is_file():
        files = _files(path)
        change = f'give {files[0]} itself' if files else 'give the folder that has one'
        raise OxygenError(f'bag {path} is no rosbag2 folder, it has no metadata.yaml: {change}')
    if path.is_file() and path.suffix not in ('.mcap', '.db3'):
        raise OxygenError(f'bag {path} is a file: give a rosbag2 folder, a .mcap or a .db3 file')
    try:
        reader = Reader(path)
        reader.open()
    except Exception as error:  # a reader of damaged files raises whatever it meets
        raise _damaged(path, error) from error
    return reader


def _files(folder: Path) -> list[Path]:
    """Recordings in a folder."""
    return sorted(file for file in folder.iterdir() if file.suffix in ('.mcap', '.db3'))


def _damaged(path: Path, error: Exception) -> OxygenError:
    return OxygenError(
        f'bag {path} cannot be read, it is truncated or damaged ({_text(error)}): '
        "record it again, or repair it with 'ros2 bag reindex' or 'mcap recover'"
    )


def _text(error: Exception) -> str:
    return ' '.join(str(error).split()) or type(error).__name__


def _topics(connections: Collection[Connection]) -> tuple[Topic, ...]:
    """One entry per topic and type; several publishers of a topic are added up."""
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    for connection in connections:
        counts[connection.topic, connection.msgtype] += connection.msgcount
    return tuple(Topic(name, kind, count) for (name, kind), count in sorted(counts.items()))

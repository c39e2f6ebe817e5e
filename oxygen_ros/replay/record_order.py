"""Whether a recorder's clock was set back: record times in the order in which they were written.

Readers hand messages out by record time, so this cannot be seen in what they give.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from rosbags.rosbag2 import Reader
from rosbags.rosbag2.storage_mcap import McapReader
from rosbags.rosbag2.storage_sqlite3 import Sqlite3Reader

MESSAGE_INDEX = 0x07
HEAD = struct.Struct('<BQHI')  # of a message index: what it is, its length, channel, bytes of rows
ROW = struct.Struct('<QQ')  # record time in ns, place in the chunk


class StepsBack(NamedTuple):
    """How often a topic's record times go back, and by how much at most, in ns."""

    times: int
    most_ns: int


def steps_back(reader: Reader | McapReader) -> dict[str, StepsBack]:
    """Topic -> its steps back, of the topics that have some. Indexes are read, not messages."""
    storage = reader.storage if isinstance(reader, Reader) else reader
    last: dict[str, int] = {}
    found: defaultdict[str, list[int]] = defaultdict(list)
    for part in getattr(storage, 'storages', [storage]):
        names = {connection.id: connection.topic for connection in part.connections}
        for number, time_ns in _written(part):
            topic = names.get(number, '')
            if time_ns < last.get(topic, time_ns):
                found[topic].append(last[topic] - time_ns)
            last[topic] = time_ns
    return {topic: StepsBack(len(steps), max(steps)) for topic, steps in found.items()}


def _written(part: McapReader | Sqlite3Reader) -> Iterator[tuple[int, int]]:
    """Connection and record time of each message, in the order in which it was written."""
    if isinstance(part, Sqlite3Reader):
        assert part.dbconn
        yield from part.dbconn.execute('SELECT topic_id, timestamp FROM messages ORDER BY id')
    elif part.chunks:
        for chunk in sorted(part.chunks, key=lambda chunk: chunk.chunk_start_offset):
            yield from _indexed(part, chunk.chunk_start_offset + chunk.chunk_length,
                                chunk.message_index_length)  # fmt: skip
    else:
        for connection, time_ns, _ in part.messages_scan(part.connections):
            yield connection.id, time_ns


def _indexed(part: McapReader, begin: int, length: int) -> list[tuple[int, int]]:
    """A chunk's messages by their place in it, out of the index records behind it."""
    assert part.bio
    part.bio.seek(begin)
    data = part.bio.read(length)
    placed = []
    at = 0
    while at + HEAD.size <= len(data):
        kind, size, channel, row_bytes = HEAD.unpack_from(data, at)
        if kind == MESSAGE_INDEX:
            rows = data[at + HEAD.size : at + HEAD.size + row_bytes]
            placed += [(place, channel, time_ns) for time_ns, place in ROW.iter_unpack(rows)]
        at += 9 + size
    return [(channel, time_ns) for _, channel, time_ns in sorted(placed)]

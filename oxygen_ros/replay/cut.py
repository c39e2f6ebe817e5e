"""An mcap whose recorder did not come to its end: no index, and a last record that is cut off."""

from __future__ import annotations

import os
from collections.abc import Collection, Generator
from pathlib import Path

from rosbags.interfaces import Connection
from rosbags.rosbag2.storage_mcap import McapReader

MAGIC = b'\x89MCAP0\r\n'
HEAD_BYTES = 9  # of a record: what it is, and its length
DATA_END = 0x0F


class CutMcap(McapReader):
    """Reads every whole record. Raises what a reader of damaged files raises."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.message_count = self.start_time = self.end_time = 0
        self.open()

    def messages(
        self,
        connections: Collection[Connection],
        start: int | None = None,
        stop: int | None = None,
    ) -> Generator[tuple[Connection, int, bytes], None, None]:
        """In the order of the file."""
        yield from self.messages_scan(connections, start, stop)

    def _open(self) -> None:
        assert self.bio and self.bio.read(len(MAGIC)) == MAGIC, 'it does not begin as an mcap'
        self.bio.seek(-len(MAGIC), os.SEEK_END)
        assert self.bio.read() != MAGIC, 'it comes to its end: something else is wrong'
        self.data_start = len(MAGIC)
        self.data_end = self._end_of_whole_records()
        self.meta_scan()
        assert self.statistics
        counts = self.statistics.channel_message_counts
        self.connections = [c._replace(msgcount=counts.get(c.id, 0)) for c in self.connections]
        self.message_count = self.statistics.message_count
        self.start_time = self.statistics.start_time
        self.end_time = self.statistics.end_time + 1

    def _end_of_whole_records(self) -> int:
        assert self.bio
        size = self.path.stat().st_size
        at = self.data_start
        while True:
            self.bio.seek(at)
            head = self.bio.read(HEAD_BYTES)
            after = at + HEAD_BYTES + int.from_bytes(head[1:], 'little')
            if len(head) < HEAD_BYTES or after > size or head[0] == DATA_END:
                return at
            at = after

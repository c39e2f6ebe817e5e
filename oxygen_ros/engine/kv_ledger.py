"""Who holds which row of the KV pool, and how much of it is in use. No tensors here.

row is       from                     until
acquired     a frame's prefill        its last holder releases it
held by      its action task          the chunk is committed
             each attached request    it is admitted elsewhere (fork), or ends
written by   at most one request      that request ends
"""

from __future__ import annotations

from dataclasses import dataclass, field

ACTION = ''  # no request has an empty id


@dataclass
class Row:
    """The books of one row. writer: the request that appends behind the prefix."""

    frame: int
    prefix: int = 0  # tokens of the shared prefix
    length: int = 0  # tokens in use, the prefix included
    holders: set[str] = field(default_factory=set)
    writer: str | None = None


class KVLedger:
    """Rows of equal capacity (tokens); bytes_per_token counts keys and values of all layers."""

    def __init__(self, rows: int, capacity: int, bytes_per_token: int) -> None:
        self.capacity = capacity
        self.bytes_per_token = bytes_per_token
        self.rows: list[Row | None] = [None] * rows

    def __getitem__(self, row: int) -> Row:
        """The books of a row in use."""
        books = self.rows[row]
        assert books is not None, f'row {row} is free'
        return books

    @property
    def free_rows(self) -> int:
        """How many rows nobody holds."""
        return self.rows.count(None)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of all tokens that somebody may still read."""
        return sum(row.length for row in self.rows if row) * self.bytes_per_token

    @property
    def bytes_limit(self) -> int:
        """Bytes of all rows when full."""
        return len(self.rows) * self.capacity * self.bytes_per_token

    def acquire(self, frame: int, holder: str) -> int:
        """Take the lowest free row: low rows keep the decode batch narrow."""
        row = self.rows.index(None)  # the scheduler admits no more than there are rows
        self.rows[row] = Row(frame, holders={holder})
        return row

    def hold(self, row: int, holder: str) -> None:
        """Add a holder to a row in use."""
        self[row].holders.add(holder)

    def release(self, row: int, holder: str) -> bool:
        """Drop a holder; True when the row became free."""
        books = self[row]
        books.holders.remove(holder)
        if books.writer == holder:
            books.writer = None
            books.length = books.prefix
        if not books.holders:
            self.rows[row] = None
        return not books.holders

    def set_prefix(self, row: int, tokens: int) -> None:
        """Note that a prefill or a fork filled the row's first tokens."""
        books = self[row]
        assert tokens <= self.capacity, f'prefix of {tokens} tokens in rows of {self.capacity}'
        books.prefix = books.length = tokens

    def set_writer(self, row: int, holder: str) -> None:
        """Let one holder append behind the prefix."""
        books = self[row]
        assert books.writer is None, f'row {row} is written by {books.writer}'
        assert holder in books.holders, f'{holder} does not hold row {row}'
        books.writer = holder

    def grow(self, row: int, length: int) -> None:
        """Note that the row's writer now uses `length` tokens."""
        books = self[row]
        assert books.prefix <= length <= self.capacity, f'row {row}: {length} of {self.capacity}'
        books.length = length

    def check_integrity(self, holders: dict[str, set[int]]) -> None:
        """Recount. holders: everyone who should hold rows -> the rows. Raises AssertionError."""
        booked: dict[str, set[int]] = {}
        for number, row in enumerate(self.rows):
            if row is None:
                continue
            assert row.holders, f'row {number} is in use by nobody'
            assert 0 <= row.prefix <= row.length <= self.capacity, f'row {number}: {row}'
            assert row.writer is None or row.writer in row.holders, f'row {number}: {row}'
            assert row.writer or row.length == row.prefix, f'row {number}: tokens without writer'
            for holder in row.holders:
                booked.setdefault(holder, set()).add(number)
        assert booked == holders, f'rows booked {booked}, rows expected {holders}'

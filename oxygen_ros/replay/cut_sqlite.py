"""A sqlite3 bag that was cut off: its last pages are missing, and so are parts of its index."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rosbags.rosbag2 import Reader

PAGE_SIZE_AT = 16  # in the file: two bytes, of which 1 stands for LARGEST_PAGE
LARGEST_PAGE = 65536


class CutSqlite(Reader):
    """Reads a copy, in a temporary folder, of every whole row. Raises what sqlite3 raises."""

    def __init__(self, path: Path) -> None:
        self._folder = TemporaryDirectory()
        pages, rows = (Path(self._folder.name) / name for name in ('pages.db3', 'rows.db3'))
        try:
            _copy_whole_pages(path, pages)
            _copy_whole_rows(pages, rows)
            pages.unlink()
            super().__init__(rows)
            self.open()
        except BaseException:
            self._folder.cleanup()
            raise

    def close(self) -> None:
        """Close and remove the copy."""
        super().close()
        self._folder.cleanup()


def _copy_whole_pages(damaged: Path, copy: Path) -> None:
    """sqlite would read what is missing of the last page as zeros."""
    with damaged.open('rb') as file:
        page_bytes = int.from_bytes(file.read(PAGE_SIZE_AT + 2)[PAGE_SIZE_AT:], 'big')
    shutil.copyfile(damaged, copy)
    size = damaged.stat().st_size
    os.truncate(copy, size - size % (LARGEST_PAGE if page_bytes == 1 else page_bytes))


def _copy_whole_rows(damaged: Path, copy: Path) -> None:
    source = sqlite3.connect(f'{damaged.resolve().as_uri()}?immutable=1', uri=True)
    with closing(source), closing(sqlite3.connect(copy)) as target:
        # without it sqlite refuses a file that is shorter than its header says
        source.execute('PRAGMA writable_schema=ON')
        tables = source.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        for name, sql in tables:
            target.execute(sql)
            columns = len(source.execute(f'PRAGMA table_info("{name}")').fetchall())
            insert = f'INSERT INTO "{name}" VALUES ({", ".join("?" * columns)})'
            # by row, not by an index, which may end earlier
            rows = source.execute(f'SELECT * FROM "{name}" ORDER BY rowid')
            target.executemany(insert, _until_damaged(rows))
        target.commit()


def _until_damaged(rows: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    """Rows before the first that is not whole."""
    with suppress(sqlite3.DatabaseError):
        yield from rows

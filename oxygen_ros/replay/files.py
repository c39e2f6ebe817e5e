"""Writing reports: paths are refused before the work begins, files are whole or not there."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oxygen_ros.types import OxygenError

# Lists whose entries get a line each.
ROWS = ('frames', 'requests', 'findings', 'bags', 'inputs')


def check_writable(path: Path, option: str = '--json') -> None:
    """Refuse an output path before the work is done, not after. Raises OxygenError."""
    if path.is_dir():
        raise OxygenError(f'{option} {path} is a folder: give a file')
    folder = path.absolute().parent
    if not folder.is_dir():
        raise OxygenError(f'{option} {path}: the folder {folder} does not exist, make it first')
    _try_to_write(folder, f'{option} {path}')


def make_folder(path: Path, option: str) -> None:
    """Make a folder for several files, before the work is done. Raises OxygenError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OxygenError(f'{option} {path} cannot be made: {error}') from error
    _try_to_write(path, f'{option} {path}')


def _try_to_write(folder: Path, what: str) -> None:
    """Permissions alone do not tell: to root all look good, on a read-only disk too."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OxygenError(
            f'{what}: the folder {folder} cannot be written: {error.strerror}'
        ) from error


def to_json(report: Mapping[str, Any]) -> str:
    """One line per frame, request and finding, so that two reports can be compared with diff."""
    parts = []
    for key in sorted(report):
        value = report[key]
        if key in ROWS and value:
            rows = ',\n'.join('  ' + _dump(row) for row in value)
            parts.append(f' {_dump(key)}: [\n{rows}\n ]')
        else:
            parts.append(f' {_dump(key)}: {_dump(value)}')
    return '{\n' + ',\n'.join(parts) + '\n}\n'


def write_json(report: Mapping[str, Any], path: Path) -> None:
    """Write a report as JSON."""
    write_text(to_json(report), path, '--json')


def write_text(text: str, path: Path, option: str) -> None:
    """Write a file; a reader never sees half of it. Raises OxygenError."""
    part = path.with_name(path.name + '.part')
    try:
        part.write_text(text, encoding='utf-8')
        part.replace(path)
    except OSError as error:
        raise OxygenError(f'{option} {path} cannot be written: {error}') from error


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)

"""Where results go: refused before the run if they could not be written after it."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxygen_ros.types import OxygenError


@dataclass(frozen=True)
class Outputs:
    """Files and folders of one run, each None if it was not asked for."""

    json: Path | None
    trace: Path | None
    pictures: Path | None

    def write(self, result: dict[str, Any]) -> None:
        """The result as JSON."""
        if self.json is not None:
            self.json.write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')
            print(f'wrote {self.json}')


def check_outputs(json_file: str | None, trace: str | None, pictures: str | None) -> Outputs:
    """Everything that was asked for can be written. Raises OxygenError."""
    if pictures is not None and importlib.util.find_spec('matplotlib') is None:
        raise OxygenError(
            'pictures need matplotlib: pip install -r requirements/base.txt, or leave --plots out '
            '(--trace needs nothing)'
        )
    folder = None if pictures is None else _folder(Path(pictures))
    return Outputs(_file(json_file), _file(trace), folder)


def _file(name: str | None) -> Path | None:
    if name is None:
        return None
    path = Path(name)
    folder = _folder(path.parent)
    if path.is_dir():
        raise OxygenError(f'{path} is a folder: name a file in it')
    if path.exists() and not os.access(path, os.W_OK):
        raise OxygenError(f'{path} cannot be written: give another file')
    return folder / path.name


def _folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / '.writable'
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OxygenError(f'{folder} cannot be written: {error}; give another folder') from error
    return folder

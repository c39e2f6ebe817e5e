"""Small files and safetensors, with failures that name the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from oxygen_ros.types import OxygenError


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises OxygenError that names the file."""
    try:
        value = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise OxygenError(f'{path}: cannot be read as JSON ({error})') from error
    if not isinstance(value, dict):
        raise OxygenError(f'{path}: holds a {type(value).__name__}, a JSON object is expected')
    return value


@contextmanager
def open_tensors(file: Path, framework: str) -> Iterator[Any]:
    """safe_open whose failures are OxygenErrors that name the file."""
    if not file.is_file():
        raise OxygenError(f'{file}: does not exist; copy the complete checkpoint')
    try:
        handle = safe_open(file, framework=framework)
    except (SafetensorError, OSError) as error:
        raise OxygenError(
            f'{file}: truncated or not a safetensors file ({error}); copy it again'
        ) from error
    with handle:
        yield handle


@contextmanager
def json_kinds(folder: Path) -> Iterator[None]:
    """Turn what a value of the wrong kind in some JSON file raises into an OxygenError."""
    try:
        yield
    except OxygenError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise OxygenError(
            f'{folder}: a JSON file holds something of the wrong kind ({error}); compare '
            "config.json and the processor files with the maker's"
        ) from error

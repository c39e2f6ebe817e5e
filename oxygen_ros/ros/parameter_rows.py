"""What a parameter is: its row in a table, and the check of a value against it. No ROS."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Any

from oxygen_ros.types import OxygenError

Value = bool | int | float | str | tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One parameter. Its type is the type of its default.

    low and high are inclusive. pattern must match the whole text, or each text of a list.
    read_only: fixed when the process starts. live: may change at any time. The others may change
    while the node is not configured. path: a leading ~ is the home folder.
    """

    name: str
    default: Value
    description: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ''
    pattern_text: str = ''
    read_only: bool = False
    live: bool = False
    path: bool = False

    @property
    def kind(self) -> type:
        """bool, int, float, str or tuple (a list of texts)."""
        return type(self.default)

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        if self.choices:
            return 'one of ' + ', '.join(self.choices)
        if self.pattern_text:
            return self.pattern_text
        noun = {
            bool: 'true or false',
            int: 'a whole number',
            float: 'a number',
            str: 'a text',
            tuple: 'a list of texts',
        }[self.kind]
        return f'{noun} from {self.low:.16g} to {self.high:.16g}' if self.low is not None else noun


def check_row(row: Row, name: str, value: Any) -> Value:
    """The value in its row's type; raises OxygenError that names the parameter."""
    converted = _convert(row.kind, value)
    if converted is None or not _within(row, converted):
        raise OxygenError(f'parameter {name} is {value!r}: must be {row.allowed}')
    if row.path and isinstance(converted, str):
        return os.path.expanduser(converted)
    return converted


def _convert(kind: type, value: Any) -> Value | None:
    """The value in the row's type, or None if it is of another kind."""
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else None
    if kind is float and isinstance(value, (int, float)):
        return float(value)
    if kind is str and isinstance(value, int):
        return str(value)  # budget: 5
    if kind is tuple:
        is_texts = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
        return tuple(value) if is_texts else None
    return value if kind in (int, str) and isinstance(value, kind) else None


def _within(row: Row, value: Any) -> bool:
    if row.choices and value not in row.choices:
        return False
    if row.pattern:
        texts = value if isinstance(value, tuple) else (value,)
        return len(set(texts)) == len(texts) and all(re.fullmatch(row.pattern, t) for t in texts)
    if row.low is None or row.high is None:
        return True
    return math.isfinite(value) and row.low <= value <= row.high

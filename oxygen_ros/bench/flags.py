"""Values of flags: each says what is allowed, and is refused before anything is built."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number within bounds."""
    allowed = f'a whole number from {least}' + ('' if most is None else f' to {most}')

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f'{text!r} is not allowed, but {allowed}')
        return value

    return parse


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f'{text!r} is not allowed, but a number above 0')
    return value


def several(parse: Callable[[str], int]) -> Callable[[str], list[int]]:
    """One value or more, with commas between."""
    return lambda text: [parse(part) for part in text.split(',')]


def budgets(text: str) -> list[int | str]:
    """'auto', 'unlimited', or numbers of decode steps per frame."""
    if text in ('auto', 'unlimited'):
        return [text]
    try:
        return [*several(whole(0))(text)]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, 'auto' or 'unlimited'") from error

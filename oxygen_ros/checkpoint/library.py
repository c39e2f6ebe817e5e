"""Which transformers this package runs with: one check, before any class of it is touched."""

from __future__ import annotations

import re

import transformers

from oxygen_ros.types import OxygenError

OLDEST = (5, 17)  # before it, towers and caches have other names


def check_transformers() -> None:
    """Raise OxygenError if the installed transformers is too old."""
    installed = transformers.__version__
    number = re.match(r'(\d+)\.(\d+)', installed)
    if number is None or (int(number[1]), int(number[2])) < OLDEST:
        raise OxygenError(
            f'transformers {installed} is installed, {OLDEST[0]}.{OLDEST[1]} or newer is needed: '
            'install the version in requirements/models.txt'
        )

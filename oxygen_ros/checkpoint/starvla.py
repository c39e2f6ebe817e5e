"""StarVLA's runs."""

from __future__ import annotations

from pathlib import Path

from oxygen_ros.checkpoint import pi05, starvla_run
from oxygen_ros.checkpoint.info import Survey

FORMATS = 'StarVLA'


def recognises(folder: Path) -> bool:
    """Whether a folder is a run of StarVLA, complete or not."""
    return starvla_run.is_run(folder)


def survey(folder: Path, robot_tag: str) -> Survey:
    """Read what can be read of a run. Raises OxygenError when nothing can be said of it."""
    return pi05.survey(folder, robot_tag)

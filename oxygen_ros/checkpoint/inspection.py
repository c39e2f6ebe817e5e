"""From a folder to a CheckpointInfo: headers and small files are read, weights are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oxygen_ros.checkpoint import pi05, xiaomi_robotics_0
from oxygen_ros.checkpoint.info import CheckpointInfo, Survey
from oxygen_ros.types import OxygenError

# Modules with recognises(folder) and survey(folder, robot_tag); pi0.5 is asked last.
READERS: list[Any] = [xiaomi_robotics_0]


def inspect_checkpoint(path: str | Path, robot_tag: str = '') -> CheckpointInfo:
    """Read a checkpoint's description, of whatever family. Raises OxygenError.

    The format is recognised by what the files hold, not by the folder's name. robot_tag: which
    robot's statistics to use, '' where the checkpoint has only one.
    """
    return survey_checkpoint(path, robot_tag).complete()


def survey_checkpoint(path: str | Path, robot_tag: str = '') -> Survey:
    """Read what can be read of a checkpoint's description, whatever is wrong with parts of it.

    Raises OxygenError when nothing can be said of it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise OxygenError(
            f'{folder}: is not a folder; give the checkpoint folder that holds model.safetensors'
        )
    for reader in READERS:
        if reader.recognises(folder):
            return reader.survey(folder, robot_tag)
    return pi05.survey(folder, robot_tag)  # says what is supported if it is not that either

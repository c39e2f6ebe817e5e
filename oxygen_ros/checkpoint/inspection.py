"""From a folder to a CheckpointInfo: headers and small files are read, weights are not."""

from __future__ import annotations

from pathlib import Path

from oxygen_ros.checkpoint import pi05
from oxygen_ros.checkpoint.info import CheckpointInfo, Survey
from oxygen_ros.types import OxygenError


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
    return pi05.survey(folder, robot_tag)

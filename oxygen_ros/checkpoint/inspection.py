"""From a folder to a CheckpointInfo: headers and small files are read, weights are not."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from oxygen_ros.checkpoint import pi05, starvla, xiaomi_robotics_0
from oxygen_ros.checkpoint.info import CheckpointInfo, Survey
from oxygen_ros.checkpoint.library import check_transformers
from oxygen_ros.types import OxygenError


class Reader(Protocol):
    """Reads the checkpoints of a family; a module is one. FORMATS: whose and which, in words."""

    FORMATS: str

    def recognises(self, folder: Path) -> bool:
        """Whether a folder is one of these, by what it holds, right or wrong in detail."""
        ...

    def survey(self, folder: Path, robot_tag: str) -> Survey:
        """Read all but the weights. Raises OxygenError when nothing can be said of a folder."""
        ...


# In the order in which they are asked.
READERS: list[Reader] = [starvla, xiaomi_robotics_0, pi05]


def supported() -> str:
    """What can be read, for a message."""
    return '; '.join(reader.FORMATS for reader in READERS)


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
    check_transformers()
    folder = Path(path)
    if not folder.is_dir():
        raise OxygenError(f'{folder}: is not a folder; give the folder of a checkpoint')
    for reader in READERS:
        if reader.recognises(folder):
            return reader.survey(folder, robot_tag)
    raise OxygenError(f'{folder}: is no checkpoint that is known; supported: {supported()}')

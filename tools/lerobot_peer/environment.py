"""A virtual environment with LeRobot from PyPI, made once in a folder that the caller names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENT = 'lerobot[pi]==0.6.1'
OLDEST_PYTHON = (3, 12)
NEEDED_BYTES = 6 * 2**30  # of disk; torch comes with its CUDA libraries
_MARK = 'installed.txt'
_TOOLS = Path(__file__).resolve().parents[1]


class EnvironmentProblem(Exception):
    """Why there is no such environment, and what to change."""


def ready_python(folder: Path, python: str) -> Path:
    """The environment's interpreter; the environment is made first where it is not there.

    python: an interpreter to make it with. Raises EnvironmentProblem.
    """
    interpreter, mark = folder / 'bin' / 'python', folder / _MARK
    if mark.is_file() and mark.read_text().strip() == REQUIREMENT:
        return interpreter
    if folder.is_dir() and any(folder.iterdir()) and not (folder / 'pyvenv.cfg').is_file():
        raise EnvironmentProblem(f'{folder} holds other files: name a new or an empty folder')
    _check_python(python)
    _check_disk(folder)
    print(f'making an environment with {REQUIREMENT} in {folder}, about 5 GB', file=sys.stderr)
    _run([python, '-m', 'venv', str(folder)])
    _run([str(interpreter), '-m', 'pip', 'install', '--quiet', REQUIREMENT])
    mark.write_text(REQUIREMENT + '\n')
    return interpreter


def worker_variables() -> dict[str, str]:
    """Environment variables of a process in it: offline, and nothing of this environment."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith('PYTHON')}
    offline = {'HF_HUB_OFFLINE': '1', 'TRANSFORMERS_OFFLINE': '1', 'HF_HUB_DISABLE_TELEMETRY': '1'}
    return {**ours, **offline, 'PYTHONPATH': str(_TOOLS)}


def _check_python(python: str) -> None:
    code = 'import sys; print(*sys.version_info[:2])'
    try:
        done = subprocess.run([python, '-c', code], capture_output=True, text=True)
    except OSError as error:
        raise EnvironmentProblem(f'{python} cannot be run: name one by --python') from error
    if done.returncode:
        raise EnvironmentProblem(f'{python} says {done.stderr.strip()!r}: name one by --python')
    version = tuple(map(int, done.stdout.split()))
    if version < OLDEST_PYTHON:
        raise EnvironmentProblem(
            f'{python} is {".".join(map(str, version))}, LeRobot needs '
            f'{".".join(map(str, OLDEST_PYTHON))} or newer: name one by --python'
        )


def _check_disk(folder: Path) -> None:
    there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(there).free
    if free < NEEDED_BYTES:
        raise EnvironmentProblem(
            f'{there} has {free / 2**30:.1f} GiB left, {NEEDED_BYTES / 2**30:.0f} are needed: '
            'name a folder on another disk'
        )


def _run(command: list[str]) -> None:
    if subprocess.run(command, env=worker_variables(), stdout=sys.stderr).returncode:
        raise EnvironmentProblem(f'this failed, see above: {" ".join(command)}')

"""The demo's child processes: started together, ended together, none left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import oxygen_ros
from oxygen_ros.ros import domain

PR_SET_PDEATHSIG = 1
POLL_S = 0.05
TAIL_LINES = 15


class Processes:
    """Children by name, in the order in which they were started."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._libc = ctypes.CDLL(None) if sys.platform == 'linux' else None

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End what still runs, whatever happened."""
        self.stop(3.0)

    def start(self, name: str, module: str, *arguments: str, log: bool = True) -> int:
        """Start python -m module and return its pid; log: output goes to <folder>/<name>.log."""
        command = [sys.executable, '-m', module, *arguments]
        with open(self._log(name) if log else os.devnull, 'wb') as out:
            self._children[name] = subprocess.Popen(
                command,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=out if log else None,
                stderr=subprocess.STDOUT if log else None,
                preexec_fn=self._die_with_parent,
            )
        return self._children[name].pid

    def wait_for(self, name: str) -> list[str]:
        """Wait until this child ends; another that ends before is a problem and ends the wait."""
        while self._children[name].poll() is None:
            for other, child in self._children.items():
                if other != name and child.poll() is not None:
                    return [
                        f'{other} ended too early with status {child.returncode}'
                        f'{self._tail(other)}'
                    ]
            time.sleep(POLL_S)
        return []

    def ended(self) -> str:
        """Which child has ended by itself, and how; '' while all run."""
        for name, child in self._children.items():
            if child.poll() is not None:
                return f'{name} ended too early with status {child.returncode}{self._tail(name)}'
        return ''

    def stop(self, timeout_s: float) -> list[str]:
        """SIGINT to all, SIGKILL to those that stay; what did not end with status 0."""
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        problems = []
        deadline = time.monotonic() + timeout_s
        for name, child in self._children.items():
            try:
                child.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.returncode:
                problems.append(f'{name} ended with status {child.returncode}{self._tail(name)}')
        self._children.clear()
        return problems

    def _die_with_parent(self) -> None:
        # If the demo itself is killed, its children get SIGINT from the kernel.
        if self._libc is not None:
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT)

    def _log(self, name: str) -> Path:
        return self._folder / f'{name}.log'

    def _tail(self, name: str) -> str:
        log = self._log(name)
        if not log.exists():
            return ''
        lines = log.read_text(errors='replace').splitlines()[-TAIL_LINES:]
        return f', {log}:\n' + '\n'.join(lines)


def ros_environment() -> dict[str, str]:
    """This process's environment with a ROS domain of its own. Raises OxygenError."""
    environment = dict(os.environ)
    domain.isolate(environment)
    environment['PYTHONUNBUFFERED'] = '1'
    profile = Path(oxygen_ros.__file__).parents[1] / 'config' / 'fastdds_shm.xml'
    if profile.is_file():
        environment.setdefault('FASTRTPS_DEFAULT_PROFILES_FILE', str(profile))
        environment.setdefault('FASTDDS_DEFAULT_PROFILES_FILE', str(profile))
    return environment

"""A ROS domain that no other process of this machine is in, for demo, tests and tools."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import tempfile
from pathlib import Path

from oxygen_ros.types import OxygenError

# Two ranges whose ports lie outside Linux's ephemeral ones. People take low numbers by hand.
DOMAINS = (*range(215, 230), *range(101, 20, -1))
PARTICIPANTS = 10  # of a domain, whose ports are looked at
_held: dict[int, int] = {}  # domain -> descriptor of its lock, until this process ends


def own_domain() -> int:
    """A domain that stays this process's until it ends; the same one at every call.

    Nobody else has its lock, and nobody listens on the ports of its first participants: neither
    a robot that knows nothing of locks nor what a killed run has left behind. Raises OxygenError.
    """
    for number in (*_held, *DOMAINS):
        if number in _held or _take(number):
            return number
    raise OxygenError(
        f'all {len(DOMAINS)} ROS domains for demo, tests and tools are in use: '
        'wait for a run to end'
    )


def isolate(environment: dict[str, str] | os._Environ[str]) -> None:
    """Set such a domain, on this machine alone; for a process before rclpy.init."""
    environment['ROS_DOMAIN_ID'] = str(own_domain())
    environment['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'


def _take(number: int) -> bool:
    path = Path(tempfile.gettempdir(), f'oxygen_domain_{number}.lock')
    try:  # another user's file can be locked although it cannot be written
        descriptor = os.open(path, os.O_RDONLY | (0 if path.exists() else os.O_CREAT), 0o644)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    if _is_inhabited(number):
        os.close(descriptor)
        return False
    _held[number] = descriptor
    return True


def _is_inhabited(number: int) -> bool:
    """Whether a port is taken on which a participant of the domain is found (RTPS 9.6.2.3)."""
    for participant in range(PARTICIPANTS):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(('', 7400 + 250 * number + 10 + 2 * participant))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
    return False

"""What a process does before its modules are imported, which takes seconds."""

from __future__ import annotations

import os
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES = 256 * 2**20


def exit_at_once_on_signals() -> None:
    """End with status 0, for the time in which nothing is open yet."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: os._exit(0))


def main() -> int:
    """oxygen_node: the signals first, then the node's modules."""
    exit_at_once_on_signals()
    from oxygen_ros.ros import node

    return node.main()


def settle_libraries() -> None:
    """Set up what torch, rclpy and malloc read once, before the first two are imported."""
    import ctypes  # after the handlers are set

    # Threads of torch that wait must not spin on the cores that the action stream needs.
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
    # By default malloc maps each picture anew and gives it back: page faults, under Python's
    # lock, that made taking one three times as slow (1.7 instead of 0.6 ms for 640x480).
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)  # absent where libc is not glibc
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the most that glibc takes
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)

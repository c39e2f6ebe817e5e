"""How a process of this package begins and ends: exit status 0 on SIGINT and SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import NoReturn

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from oxygen_ros.ros.early import SIGNALS


def stop_on_signals() -> threading.Event:
    """An event that SIGINT or SIGTERM sets; rclpy's own handlers would end the context."""
    stop = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in SIGNALS:
        signal.signal(number, handler)
    return stop


def init_rclpy(args: list[str] | None = None) -> None:
    """rclpy.init that leaves the signals alone."""
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)


class Spinner:
    """A single-threaded executor on a thread of its own, so that the main one can wait."""

    def __init__(self, node: Node, stop: threading.Event) -> None:
        self._node = node
        self._stop = stop
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)
        self._thread = threading.Thread(target=self._spin, name='executor', daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 1.0) -> bool:
        """End the thread; False if a callback is still running after timeout_s."""
        self._stop.set()
        self._executor.shutdown(timeout_sec=timeout_s)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _spin(self) -> None:
        while not self._stop.is_set():
            try:
                self._executor.spin_once()
            except ExternalShutdownException:
                self._stop.set()
            except Exception:  # one bad call must not end the node
                if self._stop.is_set():  # what it waited for is being taken down
                    return
                self._node.get_logger().error(f'error in a callback: {traceback.format_exc()}')


def leave(node: Node, limit_s: float = 2.0) -> NoReturn:
    """Tell DDS that the node is gone, no longer than limit_s, and end with status 0."""
    timer = threading.Timer(limit_s, leave_now)
    timer.daemon = True
    timer.start()
    node.destroy_node()
    rclpy.try_shutdown()
    leave_now()


def leave_now() -> NoReturn:
    """End the process with status 0, without the interpreter's own teardown.

    With torch loaded that takes seconds, and a thread inside a step cannot be interrupted.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

"""What a process does before its modules are imported, which takes seconds: it ends when asked."""

from __future__ import annotations

import os
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_at_once_on_signals() -> None:
    """End with status 0, for the time in which nothing is open yet."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: os._exit(0))

"""The steady stream of single actions, on a thread of its own.

The executor that serves cameras cannot keep a rate (see docs/topics-and-parameters.md). Ticks
follow an absolute schedule on the steady clock; a tick that comes too late is left out and
counted, never made up for. What is published is the mover's decision, by the node's clock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from oxygen_ros.ros.motion.mover import DueStep, Mover

REALTIME_PRIORITY = 50


class ActionStream:
    """Publishes what the mover says at a fixed rate until it is stopped."""

    def __init__(
        self,
        rate_hz: float,
        mover: Mover,
        clock: Callable[[], int],
        publish: Callable[[DueStep], None],
        log: Callable[[str], None],
    ) -> None:
        self.mover = mover
        self._period_s = 1.0 / rate_hz
        self._clock = clock
        self._publish = publish
        self._log = log
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name='oxygen_actions', daemon=True)
        self.missed_ticks = 0

    def start(self) -> None:
        """Begin to tick; nothing is published before the first valid chunk."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the tick that is under way, and publish the last, safe step."""
        self._stopping = True
        if self._thread.is_alive():
            self._thread.join()
        step = self.mover.last_step(self._clock())
        if step is not None:
            self._publish(step)

    def _run(self) -> None:
        self._log(_be_punctual())
        next_s = time.monotonic()
        while not self._stopping:
            step = self.mover.tick(self._clock(), time.monotonic_ns())
            if step is not None:
                self._publish(step)
            next_s += self._period_s
            late_s = time.monotonic() - next_s
            if late_s >= 0:
                missed = 1 + int(late_s / self._period_s)
                self.missed_ticks += missed
                next_s += missed * self._period_s
                late_s = time.monotonic() - next_s
            time.sleep(max(0.0, -late_s))


def _be_punctual() -> str:
    """Give this thread real-time priority where that is permitted; what came of it, in words."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REALTIME_PRIORITY))
    except (OSError, AttributeError) as error:  # AttributeError: not on Linux
        return (
            f'the action stream runs without real-time priority ({error}): its ticks may come '
            'some ms late under load; give the user an rtprio limit of '
            f'{REALTIME_PRIORITY} or more (ulimit -r) to change this'
        )
    return f'the action stream runs with real-time priority {REALTIME_PRIORITY} (SCHED_FIFO)'

"""The steady stream of single actions, on a thread of its own.

The executor that serves cameras cannot keep a rate (see docs/topics-and-parameters.md). Ticks
follow an absolute schedule on the steady clock; a tick that comes too late is left out and
counted, never made up for. What is published is the mover's decision, by the node's clock.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

from oxygen_ros.ros.motion.mover import DueStep, Mover

REALTIME_PRIORITY = 50
LEAST_COUNTED = 10  # ticks by which the rate is judged: those of a second, but so many at least


class ActionStream:
    """Publishes what the mover says at a fixed rate until it is stopped.

    failed(text) is told of a tick that raised; the next one comes as if nothing had been.
    """

    def __init__(
        self,
        rate_hz: float,
        mover: Mover,
        clock: Callable[[], int],
        publish: Callable[[DueStep], None],
        log: Callable[[str], None],
        failed: Callable[[str], None],
    ) -> None:
        self.mover = mover
        self._rate_hz = rate_hz
        self._period_s = 1.0 / rate_hz
        self._clock = clock
        self._publish = publish
        self._log = log
        self._failed = failed
        self._turn = threading.Lock()  # held from a tick's decision to its publication
        self._judged = max(round(rate_hz), LEAST_COUNTED)
        self._done_s: deque[float] = deque(maxlen=self._judged)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name='oxygen_actions', daemon=True)
        self.missed_ticks = 0

    def start(self) -> None:
        """Begin to tick; nothing is published before the first valid chunk."""
        self._done_s.extend([time.monotonic()] * self._judged)
        self._thread.start()

    def problem(self) -> str:
        """Why the robot is told too little, or ''."""
        if not self._thread.is_alive():
            return 'the action stream has ended: deactivate and activate to start it again'
        rate_hz = self._judged / (time.monotonic() - self._done_s[0])
        if rate_hz >= self._rate_hz / 2:
            return ''
        return f'the action stream makes {rate_hz:.1f} of {self._rate_hz:g} ticks per s'

    def settle(self) -> None:
        """Wait for a tick under way: what it decided before this call is published."""
        with self._turn:
            pass

    def stop(self) -> None:
        """End the thread, after the tick that is under way, and publish the last, safe step."""
        self._stopping = True
        if self._thread.is_alive():
            self._thread.join()
        self._guarded(lambda: self._send(self.mover.last_step(self._clock())))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # the robot must get its next step
            self._failed(traceback.format_exc())

    def _send(self, step: DueStep | None) -> None:
        if step is not None:
            self._publish(step)

    def _tick(self) -> None:
        with self._turn:
            self._send(self.mover.tick(self._clock(), time.monotonic_ns()))
        self._done_s.append(time.monotonic())

    def _run(self) -> None:
        self._guarded(lambda: self._log(_be_punctual()))
        next_s = time.monotonic()
        while not self._stopping:
            self._guarded(self._tick)
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

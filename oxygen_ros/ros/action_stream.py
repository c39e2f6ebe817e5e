"""The steady stream of single actions: rows of the newest chunk, each at the time it is due.

A thread of its own, because the executor that serves cameras cannot keep a rate (see
docs/topics-and-parameters.md). Ticks follow an absolute schedule on the steady clock; a tick
that comes too late is left out and counted, never made up for. Rows are chosen by the node's
clock, on which the stamps of the frames live.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from oxygen_ros.types import ActionChunk


@dataclass(frozen=True)
class DueStep:
    """Row index of chunk, due now. hold: the chunk has run out and its last row is repeated."""

    chunk: ActionChunk
    index: int
    hold: bool
    due_ns: int


def due_row(age_ns: int, step_ns: int, valid_ns: int, horizon: int) -> tuple[int, bool]:
    """Row of a chunk that is age_ns old, and whether it has run out (then its last valid row).

    A chunk from the future (age below 0) starts with row 0.
    """
    last = min(horizon - 1, max((valid_ns - 1) // step_ns, 0))
    index = max(age_ns, 0) // step_ns
    return (last, True) if index > last or age_ns >= valid_ns else (index, False)


class ActionStream:
    """Publishes the due row at a fixed rate until it is stopped."""

    def __init__(
        self,
        rate_hz: float,
        step_s: float,
        valid_s: float,
        hold: bool,
        clock: Callable[[], int],
        publish: Callable[[DueStep], None],
    ) -> None:
        self._period_s = 1.0 / rate_hz
        self._step_ns = round(step_s * 1e9)
        self._valid_ns = round(valid_s * 1e9)
        self._hold = hold
        self._clock = clock
        self._publish = publish
        self._chunk: ActionChunk | None = None  # replaced whole: one writer, one reader
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name='oxygen_actions', daemon=True)
        self.missed_ticks = 0
        self.state = 'no actions yet'

    def start(self) -> None:
        """Begin to tick; nothing is published before the first valid chunk."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for the tick that is under way, one period at most."""
        self._stopping = True
        if self._thread.is_alive():
            self._thread.join()

    def offer(self, chunk: ActionChunk) -> int:
        """Replace the chunk. Returns 0, or the age in ns of one that is refused as run out."""
        age_ns = self._clock() - chunk.stamp_ns
        if age_ns >= self._valid_ns:
            return age_ns
        self._chunk = chunk
        return 0

    def clear(self) -> None:
        """Forget the chunk: nothing is published until the next one."""
        self._chunk = None

    def due(self) -> DueStep | None:
        """What has to be published now, or None for silence."""
        chunk = self._chunk
        if chunk is None:
            self.state = 'no actions yet'
            return None
        now_ns = self._clock()
        index, hold = due_row(
            now_ns - chunk.stamp_ns, self._step_ns, self._valid_ns, len(chunk.actions)
        )
        if hold and not self._hold:
            self.state = 'silent: the last chunk has run out'
            return None
        self.state = 'holding: the last chunk has run out' if hold else 'streaming'
        return DueStep(chunk, index, hold, now_ns)

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._stopping:
            step = self.due()
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

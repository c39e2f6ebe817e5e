"""Why words are late: how long unfinished answers waited, and what for."""

from __future__ import annotations

import time
from collections import Counter

from oxygen_ros.types import EngineStats

BUDGET = 'budget used up'
ADMISSION = 'no time to begin before the next frame'
TURN = 'a frame is answered first'
OVERLOAD = 'frames come too fast'
ROW = 'no row free'
FRAME = 'no frame yet'


class WordWaits:
    """Seconds by reason, booked by the worker after each step and each sleep.

    Answers that have begun wait for BUDGET, for the TURN of one frame, or in OVERLOAD for frame
    after frame; those that have not wait for a ROW or a FRAME, or, where they have both, for time
    for their ADMISSION. Other threads only read.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.now: tuple[str, ...] = ()  # what is waited for, by the last booking
        self._booked_s = time.monotonic()
        self._answered = False  # the last step answered a frame

    def slept(self, stats: EngineStats) -> None:
        """Until now the worker had nothing that it was allowed to do."""
        held = [BUDGET] if stats.rows_in_use > stats.to_admit else []
        self._book(stats, *held, *[ADMISSION] * (stats.to_admit > 0))

    def stepped(self, stats: EngineStats, answered: bool) -> None:
        """A step ended now; answered: it was a frame's, else one of words."""
        overload = answered and self._answered
        self._answered = answered
        self._book(stats, *[OVERLOAD if overload else TURN] * answered)

    def _book(self, stats: EngineStats, *begun: str) -> None:
        now_s = time.monotonic()
        took_s, self._booked_s = now_s - self._booked_s, now_s
        reasons = list(begun) if stats.rows_in_use else []
        if stats.queued:
            reasons.append(ROW if stats.rows_in_use >= stats.rows_limit else FRAME)
        self.now = tuple(reasons)
        # A new Counter: another thread may be reading the old one.
        self.seconds = self.seconds + Counter(dict.fromkeys(reasons, took_s))

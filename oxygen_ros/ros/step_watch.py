"""Notices an engine's step that does not end."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

LEAST_S = 1.0
TIMES_USUAL = 5  # a step that takes so many times the usual is no longer slow but stuck


class StepWatch:
    """The thread that steps tells when; any thread asks for problem()."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s: float | None = None
        self._took_s: deque[float] = deque(maxlen=32)

    def begin(self) -> None:
        """A step begins now."""
        self._began_s = self._clock()

    def end(self) -> None:
        """It has ended, and what came of it is handed out."""
        if self._began_s is not None:
            self._took_s.append(self._clock() - self._began_s)
        self._began_s = None

    def problem(self) -> str:
        """How long the step under way takes, if that is too long; or ''."""
        began_s, took_s = self._began_s, self._took_s.copy()
        age_s = 0.0 if began_s is None else self._clock() - began_s
        usual_s = statistics.median(took_s) if took_s else 0.0
        if age_s <= max(LEAST_S, TIMES_USUAL * usual_s):
            return ''
        usual = f' (usual: {usual_s:.2f} s)' if took_s else ''
        return f'no step of the engine has ended for {age_s:.0f} s{usual}'

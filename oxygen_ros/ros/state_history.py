"""Joint positions of the last while, so that each image gets those of its own moment. No rclpy."""

from __future__ import annotations

from collections import deque

import numpy as np

MAX_STATES = 65_536  # some 15 MB of seven joints; a minute at 1 kHz fits


class StateHistory:
    """Positions by stamp, in ns, over span_ns before the newest. Stamps only rise in it.

    Of those that come faster the last of each span_ns / most is remembered.
    """

    def __init__(self, span_ns: int, most: int = MAX_STATES) -> None:
        self._span_ns = span_ns
        self._gap_ns = span_ns / most
        self._states: deque[tuple[int, np.ndarray]] = deque()

    def __len__(self) -> int:
        return len(self._states)

    def clear(self) -> None:
        """Forget all."""
        self._states.clear()

    def add(self, stamp_ns: int, vector: np.ndarray) -> None:
        """Remember positions; what is stamped later belongs to a time before a jump."""
        states = self._states
        while states and states[-1][0] >= stamp_ns:
            states.pop()
        if len(states) > 1 and stamp_ns - states[-2][0] < self._gap_ns:
            states.pop()
        states.append((stamp_ns, vector))
        # One stays that is as old as the span, for an image between it and the next.
        while len(states) > 1 and states[1][0] <= stamp_ns - self._span_ns:
            states.popleft()

    def at(self, stamp_ns: int) -> np.ndarray | None:
        """The last positions that are stamped no later, or None."""
        return next((v for stamp, v in reversed(self._states) if stamp <= stamp_ns), None)

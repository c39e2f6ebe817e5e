"""How much decoding may happen per frame. No tensors here; times are steady nanoseconds."""

from __future__ import annotations

from typing import Protocol

from oxygen_ros.types import OxygenError

_FRESH = 0.2  # weight of the newest measurement in a running mean


class Budget(Protocol):
    """Asked before every decode step."""

    name: str
    used: int  # decode steps since the last frame or grant

    def frame_arrived(self, now: int) -> None:
        """A frame came in; it may still wait for its turn."""

    def refill(self, now: int) -> None:
        """A chunk was handed out, or the idle timer fired because no frame came when due."""

    def spend(self, rows: int, took_ns: int) -> None:
        """One decode step of so many rows was run."""

    def allows(self, now: int, rows: int) -> bool:
        """Whether one more step of so many rows may be run."""
        ...

    def left(self) -> int:
        """Steps left, -1 where that is unlimited or unknown."""
        ...


class FixedBudget:
    """k decode steps per frame, as in the paper; None is unlimited."""

    def __init__(self, steps: int | None) -> None:
        self.steps = steps
        self.used = 0
        self.name = 'unlimited' if steps is None else str(steps)

    def frame_arrived(self, now: int) -> None:
        """Nothing to learn from arrivals."""

    def refill(self, now: int) -> None:
        """A chunk was handed out, or the idle timer fired."""
        self.used = 0

    def spend(self, rows: int, took_ns: int) -> None:
        """One decode step was run."""
        self.used += 1

    def allows(self, now: int, rows: int) -> bool:
        """Whether one more step is within the budget."""
        return self.steps is None or self.used < self.steps

    def left(self) -> int:
        """Steps left, -1 for unlimited."""
        return -1 if self.steps is None else self.steps - self.used


class AutoBudget:
    """As many steps as fit before the next frame is due, from measured step times."""

    name = 'auto'

    def __init__(self, margin_ns: int = 1_000_000) -> None:
        self.margin_ns = margin_ns
        self.used = 0
        self._period: float | None = None  # ns between frames, running mean
        self._arrived: int | None = None
        self._due: float | None = None  # when the next frame is expected
        self._step_ns: dict[int, float] = {}  # rows -> running mean

    def frame_arrived(self, now: int) -> None:
        """Learn the frame period; a pause of four periods starts the learning anew."""
        if self._arrived is not None:
            gap = now - self._arrived
            paused = self._period is not None and gap >= 4 * self._period
            self._period = None if paused else _mean(self._period, gap)
        self._arrived = now
        self._due = None if self._period is None else now + self._period

    def refill(self, now: int) -> None:
        """A chunk was handed out, or the idle timer fired because no frame came when due."""
        self.used = 0
        if self._due is not None and self._period is not None and now > self._due:
            self._due = now + self._period

    def spend(self, rows: int, took_ns: int) -> None:
        """One decode step was run and measured."""
        self.used += 1
        self._step_ns[rows] = _mean(self._step_ns.get(rows), took_ns)

    def allows(self, now: int, rows: int) -> bool:
        """Whether a step of so many rows would end before the next frame is due."""
        if self._due is None:
            return True
        return now + self._estimate(rows) + self.margin_ns <= self._due

    def left(self) -> int:
        """Steps that still fit at the last measured pace; -1 while nothing is known."""
        if self._due is None or not self._step_ns or self._arrived is None:
            return -1
        pace = max(self._estimate(max(self._step_ns)), 1.0)
        return max(0, int((self._due - self._arrived) / pace) - self.used)

    def _estimate(self, rows: int) -> float:
        """ns of a step; of the nearest row count known when this one is new."""
        if not self._step_ns:
            return 0.0
        return self._step_ns[min(self._step_ns, key=lambda known: abs(known - rows))]


def _mean(old: float | None, new: float) -> float:
    return float(new) if old is None else (1 - _FRESH) * old + _FRESH * new


def make_budget(value: int | str) -> Budget:
    """From a number of steps (int or digits), 'auto' or 'unlimited'; raises OxygenError."""
    text = str(value).strip().lower()
    if text == 'auto':
        return AutoBudget()
    if text == 'unlimited':
        return FixedBudget(None)
    if text.isdigit():
        return FixedBudget(int(text))
    raise OxygenError(
        f'budget is {value!r}: allowed are a number of decode steps per frame (0 or more), '
        "'auto' or 'unlimited'"
    )

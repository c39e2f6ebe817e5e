"""Decides what the robot is told at each tick. Knows no clock: every time is passed in, in ns.

now_ns is on the node's clock, on which the stamps of frames live; steady_ns never jumps. Any
thread may call; who writes what: the worker offers chunks, the stream's thread ticks, the
executor's stops and clears.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from oxygen_ros.ros.contract import Actions
from oxygen_ros.ros.motion.limits import Limiter, Limits
from oxygen_ros.ros.motion.plan import Plan, averaged, blended
from oxygen_ros.types import ActionChunk

MAX_AVERAGED = 16  # chunks that 'average' remembers
JUMP_NS = 100_000_000  # a clock that goes back by more is at another time


@dataclass(frozen=True)
class DueStep:
    """Row index of chunk, due now; values [A] is what is published in its place.

    hold: nothing new is left of the chunk: a repetition of its last step, or the ramp to a stop.
    """

    chunk: ActionChunk
    index: int
    hold: bool
    due_ns: int
    values: np.ndarray


@dataclass(frozen=True)
class Seam:
    """Jump between two chunks at the moment of their switch: the largest, and of which joint."""

    jump: float = 0.0
    joint: str = ''


class Mover:
    """Chunks in, one step per tick out. state: what it does, in words.

    limited: steps that a velocity or acceleration limit held back. seam: of the last switch;
    seam_max: the largest one.
    """

    def __init__(self, actions: Actions, period_s: float) -> None:
        self._actions = actions
        self._step_ns = round(actions.step_period_s * 1e9)
        self._valid_ns = round(actions.valid_for_s * 1e9)
        self._limits = Limits(actions.joints)
        self._limiter = Limiter(self._limits, period_s)
        self._lock = threading.Lock()
        self._plan: Plan | None = None
        self._older: deque[Plan] = deque(maxlen=MAX_AVERAGED)  # as they came, not merged
        self._begin_lead_ns: int | None = None  # of a plan that begins at the next tick
        self._last: DueStep | None = None  # published
        self._stopped = ''
        self._moved = _Moved()
        self._now_ns = self._advanced_ns = 0  # last tick, and when on steady time it was new
        self.limited = 0
        self.seam = self.seam_max = Seam()
        self.state = 'no actions yet'

    def offer(self, chunk: ActionChunk, now_ns: int) -> Plan | None:
        """Join a chunk to the running one; the plan, or None if it has run out or it is stopped.

        Steps that were really published since the chunk's stamp are skipped, no others.
        """
        stamp_ns = min(chunk.stamp_ns, now_ns)
        expires_ns = stamp_ns + self._valid_ns
        if now_ns >= expires_ns:
            return None
        with self._lock:
            if self._stopped:
                return None
            old = self._plan
            lead_ns = self._moved.since(stamp_ns, min(now_ns, old.ends_ns) if old else now_ns)
            new = Plan(
                chunk,
                chunk.actions,
                now_ns - lead_ns,
                expires_ns,
                self._step_ns,
                self._actions.interpolate,
            )
            merged = replace(new, rows=self._merged(old, new, now_ns))
            self._note_seam(old, merged, now_ns)
            self._older.append(new)
            self._plan = merged
            self._begin_lead_ns = None if self._moved.running else lead_ns
            return merged

    def tick(self, now_ns: int, steady_ns: int) -> DueStep | None:
        """What has to be published now, or None for silence."""
        with self._lock:
            step = self._due(now_ns, steady_ns)
            self._last = step
            if step is None:
                self._limiter.forget()
            return step

    def stop(self, why: str) -> np.ndarray | None:
        """From the next tick on: the last step again, or silence; until resume().

        This, drop_plan() and clear() return the last published step, [A], if there is one.
        """
        with self._lock:
            self._stopped = why
            self._drop_plan()
            return self._last_values()

    def resume(self) -> None:
        """Chunks count again."""
        with self._lock:
            self._stopped = ''

    def drop_plan(self) -> np.ndarray | None:
        """Forget what was to come: the last step again, or silence, until the next chunk."""
        with self._lock:
            self._drop_plan()
            return self._last_values()

    def clear(self) -> np.ndarray | None:
        """Forget everything: nothing but a stop's hold is published until the next chunk."""
        with self._lock:
            self._drop_plan()
            last = self._last_values()
            if not self._stopped:  # a stop goes on to repeat it
                self._last = None
                self._limiter.forget()
            return last

    def start_from(self, position: np.ndarray) -> None:
        """Where the robot is, [A], NaN where unknown; counts when no step was published yet."""
        with self._lock:
            if self._last is None:
                self._limiter.start(position)

    def last_step(self, now_ns: int) -> DueStep | None:
        """The safe command with which the stream ends, by contract; None for silence."""
        with self._lock:
            return self._halted(now_ns)

    def last_values(self) -> np.ndarray | None:
        """What the last tick published, [A]; None if that was nothing."""
        with self._lock:
            return self._last_values()

    def overlap(self, stamp_ns: int, now_ns: int) -> np.ndarray | None:
        """Rows [n, A], n <= H, of the running plan when those of a chunk from stamp_ns are due.

        None when nothing is running.
        """
        with self._lock:
            plan = self._plan
            if plan is None or not self._moved.running or now_ns >= plan.ends_ns:
                return None
            start_ns = now_ns - self._moved.since(min(stamp_ns, now_ns), now_ns)
            times = start_ns + np.arange(len(plan.rows), dtype=np.int64) * self._step_ns
            return plan.resampled(times[times <= plan.last_due_ns]).astype(np.float32)

    def rows_ahead(self, plan: Plan, now_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a plan that are due later than now, [n, A], and when, int64 [n].

        No faster than the limits, from the last published step on.
        """
        times = plan.due_times()[: plan.last + 1]
        ahead = np.flatnonzero(times > now_ns)
        with self._lock:
            limiter = self._limiter.copy(self._actions.step_period_s)
        rows = [limiter.follow(plan.rows[row])[0] for row in ahead]
        return np.reshape(rows, (len(ahead), plan.rows.shape[1])), times[ahead]

    # Under the lock.

    def _merged(self, old: Plan | None, new: Plan, now_ns: int) -> np.ndarray:
        if self._actions.merge == 'average':
            running = [plan for plan in self._older if plan.last_due_ns > now_ns]
            return averaged(running, new)
        if self._actions.merge == 'blend' and old is not None:
            return blended(old, new, now_ns, self._actions.blend_steps)
        return new.rows

    def _note_seam(self, old: Plan | None, new: Plan, now_ns: int) -> None:
        """Between what the old plan would have given now and what the new one gives."""
        before = old.values(now_ns) if old is not None else self._last_values()
        if before is None:
            return
        jumps = np.abs(new.values(now_ns) - before)
        joint = int(jumps.argmax())
        self.seam = Seam(float(jumps[joint]), self._actions.names[joint])
        if self.seam.jump > self.seam_max.jump:
            self.seam_max = self.seam

    def _last_values(self) -> np.ndarray | None:
        return None if self._last is None else self._last.values

    def _drop_plan(self) -> None:
        self._plan, self._begin_lead_ns = None, None
        self._older.clear()
        self._moved.end()

    def _due(self, now_ns: int, steady_ns: int) -> DueStep | None:
        stalled = self._watch_clock(now_ns, steady_ns)
        if self._stopped:
            self.state = f'stopped: {self._stopped}'
            return self._halted(now_ns)
        if self._plan is None:
            return self._without_plan(now_ns)
        if self._begin_lead_ns is not None:
            start_ns = now_ns - self._begin_lead_ns
            self._plan, self._begin_lead_ns = replace(self._plan, start_ns=start_ns), None
        plan = self._plan
        index, ended = plan.row_at(now_ns)
        if ended or stalled:
            return self._expired(plan, index, now_ns, stalled)
        self.state = 'streaming'
        self._moved.tick(now_ns)
        return self._step(plan, index, False, now_ns, plan.values(now_ns))

    def _watch_clock(self, now_ns: int, steady_ns: int) -> bool:
        """Whether the node's clock stands still. One that went back a lot ends the plan."""
        if now_ns < self._now_ns - min(self._valid_ns, JUMP_NS):
            self._drop_plan()
        if now_ns != self._now_ns or not self._advanced_ns:
            self._now_ns, self._advanced_ns = now_ns, steady_ns
        return steady_ns - self._advanced_ns >= self._valid_ns

    def _without_plan(self, now_ns: int) -> DueStep | None:
        if self._last is None or self._actions.when_expired == 'silence':
            self.state = 'no actions yet'
            return None
        self.state = 'holding: no chunk to follow'
        return self._repeated(now_ns)

    def _expired(self, plan: Plan, index: int, now_ns: int, stalled: bool) -> DueStep | None:
        why = 'the clock stands still' if stalled else 'the last chunk has run out'
        self._moved.end()
        how = self._actions.when_expired
        if how == 'silence':
            self.state = f'silent: {why}'
            return None
        values = plan.rows[index].astype(np.float64)
        self.state = f'holding: {why}'
        if how == 'ramp' and not stalled:
            share = min((now_ns - plan.ends_ns) / (self._actions.ramp_s * 1e9), 1.0)
            values = self._ramp(plan, values, share)
            if share < 1.0:
                self.state = f'ramping to a stop: {why}'
        return self._step(plan, index, True, now_ns, values)

    def _ramp(self, plan: Plan, values: np.ndarray, share: float) -> np.ndarray:
        """On from the last row with its velocity, which falls to 0 over ramp_s; [A]."""
        distance = plan.final_velocity() * self._actions.ramp_s * (share - share**2 / 2)
        low = np.minimum(self._limits.lower, values)
        return np.clip(values + distance, low, np.maximum(self._limits.upper, values))

    def _step(
        self, plan: Plan, index: int, hold: bool, now_ns: int, target: np.ndarray
    ) -> DueStep:
        values, held_back = self._limiter.follow(target)
        self.limited += held_back
        return DueStep(plan.chunk, index, hold, now_ns, values)

    def _halted(self, now_ns: int) -> DueStep | None:
        return None if self._actions.when_stopped == 'silence' else self._repeated(now_ns)

    def _repeated(self, now_ns: int) -> DueStep | None:
        """The last published step once more, without a ramp; None if there is none."""
        if self._last is None:
            return None
        self._limiter.start(self._last.values)
        return replace(self._last, hold=True, due_ns=now_ns)


class _Moved:
    """The spans in which steps of a plan were really published."""

    def __init__(self) -> None:
        self._closed: deque[tuple[int, int]] = deque(maxlen=8)
        self._begin_ns: int | None = None
        self._until_ns = 0

    @property
    def running(self) -> bool:
        """Whether the last tick published one."""
        return self._begin_ns is not None

    def tick(self, now_ns: int) -> None:
        """A step of a plan is published now."""
        if self._begin_ns is None:
            self._begin_ns = now_ns
        self._until_ns = now_ns

    def end(self) -> None:
        """This tick does not."""
        if self._begin_ns is not None:
            self._closed.append((self._begin_ns, self._until_ns))
            self._begin_ns = None

    def since(self, begin_ns: int, until_ns: int) -> int:
        """How long, in ns, such steps were published between two times."""
        spans = list(self._closed)
        if self._begin_ns is not None:
            spans.append((self._begin_ns, until_ns))
        return sum(max(min(b, until_ns) - max(a, begin_ns), 0) for a, b in spans)

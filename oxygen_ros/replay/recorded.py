"""What a bag says happened: joint motion, and what a node answered when it was recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from oxygen_ros.ros.conversions import stamp_ns

# Stamps that go back by less are out of order; by more, the clock was set back or a bag looped.
OUT_OF_ORDER_NS = 1_000_000_000


class RecordedMotion:
    """Joint positions over the stamps of joint states, in robot units, looked up by name.

    names: the joints that the chunks drive, [A]. Where stamps go back a new segment begins;
    motion is only looked up within one. max_gap_ns: longer gaps hold no motion.
    """

    def __init__(self, names: Sequence[str], max_gap_ns: int) -> None:
        self.names = tuple(names)
        self._max_gap_ns = max_gap_ns
        self._times: list[list[int]] = [[]]
        self._rows: list[list[list[float]]] = [[]]

    @property
    def segment(self) -> int:
        """Number of the segment that grows."""
        return len(self._times) - 1

    @property
    def last_ns(self) -> int:
        """Time of the last joint state, 0 before the first."""
        return self._times[-1][-1] if self._times[-1] else 0

    def add(self, msg: Any, time_ns: int) -> None:
        """Take a joint state; time_ns stands for a stamp of 0. Joints it lacks are NaN."""
        time_ns = stamp_ns(msg.header) or time_ns
        if self._times[-1] and time_ns <= self._times[-1][-1]:
            if self._times[-1][-1] - time_ns < OUT_OF_ORDER_NS:
                return
            self._times.append([])
            self._rows.append([])
        given = dict(zip(msg.name, np.asarray(msg.position, np.float64), strict=False))
        self._times[-1].append(time_ns)
        self._rows[-1].append([float(given.get(name, np.nan)) for name in self.names])

    def at(self, segment: int, joint: int, times_ns: np.ndarray) -> np.ndarray:
        """Position of one joint, float64 like times_ns; NaN where the bag does not say."""
        times, values = self.series(segment, joint)
        if not len(times):
            return np.full(times_ns.shape, np.nan)
        above = np.searchsorted(times, times_ns)
        upper, lower = np.minimum(above, len(times) - 1), np.maximum(above - 1, 0)
        between = (above > 0) & (above < len(times))
        near = between & (times[upper] - times[lower] <= self._max_gap_ns)
        # from the first time on, so that nanoseconds of today fit into a float64
        found = np.interp(times_ns - times[0], times - times[0], values)
        return np.where(near | (times[upper] == times_ns), found, np.nan)

    def series(self, segment: int, joint: int) -> tuple[np.ndarray, np.ndarray]:
        """Times in ns, int64, and positions of one joint, float64, where it is known."""
        times = np.array(self._times[segment], np.int64)
        values = np.array(self._rows[segment], np.float64).reshape(-1, len(self.names))[:, joint]
        known = np.isfinite(values)
        return times[known], values[known]


class Said:
    """What a node answered while the bag was recorded.

    chunks: stamp of the frame -> float32 [H, A]. words: request id -> token ids.
    """

    def __init__(self, joints: Sequence[str]) -> None:
        self.joints = tuple(joints)
        self.chunks: dict[int, np.ndarray] = {}
        self.words: defaultdict[str, list[int]] = defaultdict(list)
        self.others: set[tuple[str, ...]] = set()  # joints of chunks that drive something else

    def add_chunk(self, msg: Any) -> None:
        """Take an ActionChunk; its columns are brought into the contract's order."""
        names = list(msg.joint_names)
        if sorted(names) != sorted(self.joints):
            self.others.add(tuple(names))
            return
        actions = np.asarray(msg.actions, np.float32).reshape(int(msg.horizon), len(names))
        order = [names.index(name) for name in self.joints]
        self.chunks[stamp_ns(msg.header)] = actions[:, order]

    def add_token(self, msg: Any) -> None:
        """Take a LanguageToken."""
        if msg.token >= 0:
            self.words[msg.id].append(int(msg.token))

"""Joins camera images, joint positions and the instruction into whole observations.

No rclpy and no clock of its own: every time is passed in, in ns. stamp_ns is the message's own
stamp; arrival_ns is when it came, on one clock for all calls (live the node's, in replay the
bag's). The same messages in the same order give the same observations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from oxygen_ros.ros.contract import Camera, Contract
from oxygen_ros.ros.input_ages import InputState, behind_text, in_ns, is_fresh, missing, since
from oxygen_ros.ros.joints import JointMap
from oxygen_ros.ros.state_history import StateHistory
from oxygen_ros.types import Observation

_ALIKE = 1.25  # periods that differ by no more than this are one rate
_NEAR = 0.6  # of a period; half would drop and take images that are half a period apart in turn
# An optional camera's next image is waited for when its stamp should be near the frame's: from
# this many periods of the frames before it is due until it is overdue by that many.
_DUE, _OVERDUE = 0.25, 1.5


@dataclass
class _Slot:
    """Newest image of one camera. fresh: not yet part of an observation.

    rgb is None before the first image and after its image was dropped; last_ns and arrival_ns
    stay, for repeated frames and for waiting_for().
    """

    camera: Camera
    rgb: np.ndarray | None = None
    stamp_ns: int = 0
    arrival_ns: int | None = None
    last_ns: int | None = None
    gap_ns: int = 0  # between the last two stamps
    fresh: bool = False
    count: int = 0

    @property
    def name(self) -> str:
        """Slot and topic, in words."""
        return f'camera {self.camera.slot} on {self.camera.topic}'


class ObservationBuffer:
    """Newest input per slot, and the rule that says when they are one observation.

    An observation is whole when every required camera has a fresh image; or when a fresh camera
    gets its next image (a whole period has passed) and the others have one, fresh or not, within
    the tolerance. What is left over is dropped and counted, and the buffer goes on. Cameras of one
    rate are paired with their nearest images, whichever came first when the node began. Joint
    positions are those of the newest image's stamp, whichever message was faster.

    An optional camera that runs is waited for where its image of the same moment is due, whichever
    message was faster; not longer than to the next image of a required one.

    judge_stamps: arrivals are on the clock of the stamps, so that a stamp says how old a message
    is; where they are not (a bag's record times) only arrivals count. A message without a stamp is
    as old as its arrival.

    used: images that became part of an observation, each once. dropped: images (and repeated
    joint states) that did not, by reason. events: what was noticed without dropping: zero_stamp,
    time_jump.
    """

    def __init__(self, contract: Contract, judge_stamps: bool = False) -> None:
        self._judge_stamps = judge_stamps
        self._slots = {camera.slot: _Slot(camera) for camera in contract.cameras}
        self._required = [s for s in self._slots.values() if s.camera.required]
        self._contract = contract
        self._units = JointMap(contract.state.joints)
        self._tolerance_ns = in_ns(contract.timing.sync_tolerance_ms)
        self._image_age_ns = in_ns(contract.timing.image_max_age_ms)
        self._state_age_ns = in_ns(contract.timing.state_max_age_ms)
        self._state: np.ndarray | None = None
        self._state_stamp_ns = 0
        self._state_arrival_ns: int | None = None
        self._state_count = 0
        self._states = StateHistory(self._image_age_ns)  # while images were on their way
        self._waits = False  # an image was dropped for a nearer one: once, not again and again
        self._heard = ''  # the newest instruction
        self._default = contract.instruction.default
        self.used = 0
        self.dropped: Counter[str] = Counter()
        self.events: Counter[str] = Counter()

    def add_image(
        self, slot: str, rgb: np.ndarray, stamp_ns: int, arrival_ns: int
    ) -> Observation | None:
        """Take over an image, uint8 [h, w, 3]; the observation that it completes, or None."""
        entry = self._slots[slot]
        if stamp_ns == 0:
            self.events['zero_stamp'] += 1
            stamp_ns = arrival_ns
        if stamp_ns == entry.last_ns:
            self.dropped['repeated_stamp'] += 1
            return None
        if entry.last_ns is not None and stamp_ns < entry.last_ns:
            self.jump()
        whole = self._unawaited(entry, stamp_ns, arrival_ns)
        entry.gap_ns = 0 if entry.last_ns is None else stamp_ns - entry.last_ns
        replaced = entry.fresh
        entry.rgb, entry.stamp_ns, entry.arrival_ns = rgb, stamp_ns, arrival_ns
        entry.last_ns, entry.fresh = stamp_ns, True
        entry.count += 1
        if whole:
            return whole
        if not entry.camera.required:
            self.dropped['superseded'] += replaced
            waits = self._all_fresh() and not self._awaits(self._newest())  # for nothing any more
            return self._emit(self._newest(), arrival_ns) if waits else None
        return self._complete(replaced, arrival_ns)

    def add_joint_state(self, vector: np.ndarray, stamp_ns: int, arrival_ns: int) -> None:
        """Take over positions in robot units, float32 [joints]. A repeated stamp is no news."""
        if stamp_ns == 0:
            self.events['zero_stamp'] += 1
        elif stamp_ns == self._state_stamp_ns and self._state is not None:
            self.dropped['repeated_joint_state'] += 1
            return
        self._state, self._state_stamp_ns, self._state_arrival_ns = vector, stamp_ns, arrival_ns
        self._state_count += 1
        if stamp_ns == 0:
            self._states.clear()  # nothing says of when it is: only the latest counts
        else:
            self._states.add(stamp_ns, vector)

    @property
    def _instruction(self) -> str:
        return self._heard or self._default

    def set_instruction(self, text: str) -> None:
        """The task from the next observation on."""
        self._heard = text

    def set_default_instruction(self, text: str) -> None:
        """The task until one is heard; '' stands for the contract's own default."""
        self._default = text or self._contract.instruction.default

    def reset(self) -> None:
        """New episode: forget images and joint positions; the instruction and counts stay."""
        self._forget('reset')

    def jump(self) -> None:
        """The clock went back: what is held is of another time."""
        self.events['time_jump'] += 1
        self._forget('time_jump')

    def ahead(self) -> dict[str, str]:
        """Camera -> a sentence, where stamps lie in the future when they arrive."""
        found = {}
        for entry in self._slots.values():
            ahead_ns = 0 if entry.arrival_ns is None else entry.stamp_ns - entry.arrival_ns
            if ahead_ns > self._image_age_ns:
                found[entry.name] = (
                    f'{entry.name}: its stamps are '
                    f'{ahead_ns / 1e9:.1f} s ahead of the clock of the node: check that both use '
                    'one clock, or set use_sim_time if a bag is played'
                )
        return found

    def behind(self, now_ns: int) -> dict[str, str]:
        """Required input -> a sentence, where messages come that are too old by their stamps."""
        found: dict[str, str] = {}
        if not self._judge_stamps:
            return found
        for name, arrival_ns, stamp_ns, limit_ns in self._times():
            if is_fresh(arrival_ns, now_ns, limit_ns) and now_ns - stamp_ns > limit_ns:
                found[name] = behind_text(name, now_ns - stamp_ns, limit_ns)
        return found

    def held(self) -> int:
        """Images that wait to become part of an observation."""
        return sum(entry.fresh for entry in self._slots.values())

    def waiting_for(self, now_ns: int) -> list[str]:
        """What is missing or stale at now_ns (the clock of the arrivals), in words."""
        found = []
        for entry in self._required:
            found += missing(entry.name, 'image', entry.arrival_ns, now_ns, self._image_age_ns)
        found += self._skew()
        name = self._state_name
        found += missing(name, 'message', self._state_arrival_ns, now_ns, self._state_age_ns)
        found += self.behind(now_ns).values()
        if not self._instruction:
            found.append(f'instruction on {self._contract.instruction.topic}: none yet')
        return found

    def inputs(self, now_ns: int) -> list[InputState]:
        """Every camera and the joint state at now_ns (the clock of the arrivals)."""
        found = [
            InputState(
                f'camera {entry.camera.slot}',
                entry.camera.topic,
                entry.camera.required,
                entry.count,
                since(entry.arrival_ns, now_ns),
                since(entry.last_ns, now_ns),
                self._image_age_ns / 1e9,
            )
            for entry in self._slots.values()
        ]
        arrival_ns, stamp_ns = self._state_arrival_ns, self._state_stamp_ns or None
        joints = InputState(
            'joint state',
            self._contract.state.topic,
            True,
            self._state_count,
            since(arrival_ns, now_ns),
            since(stamp_ns, now_ns),
            self._state_age_ns / 1e9,
        )
        return [*found, joints]

    def _all_fresh(self) -> bool:
        return all(entry.fresh for entry in self._required)

    def _unawaited(self, entry: _Slot, stamp_ns: int, arrival_ns: int) -> Observation | None:
        """What waits for an optional camera alone when a required one (entry) is a period ahead.

        None as well where the new image is already the next frame, and waits for nothing.
        """
        if not entry.camera.required or not self._all_fresh():
            return None
        is_next_frame = len(self._required) == 1 and not self._awaits(stamp_ns)
        return None if is_next_frame else self._emit(self._newest(), arrival_ns)

    def _newest(self) -> int:
        return max(entry.stamp_ns for entry in self._required)

    def _awaits(self, newest: int) -> bool:
        """Whether an image of an optional camera that runs is due about this stamp."""
        period = min(entry.gap_ns for entry in self._required)
        optional = (e for e in self._slots.values() if not e.camera.required)
        return any(
            -_DUE * period <= newest - (e.last_ns + e.gap_ns) <= _OVERDUE * period
            for e in optional
            if e.last_ns is not None and e.gap_ns > 0
        )

    def _complete(self, replaced: bool, arrival_ns: int) -> Observation | None:
        """Apply the rule after a required camera's image came; replaced: over a fresh one."""
        all_fresh = self._all_fresh()
        if not (all_fresh or replaced):
            return None
        if any(entry.rgb is None for entry in self._required):
            self.dropped['superseded'] += replaced
            return None
        newest = self._newest()
        late = [e for e in self._required if newest - e.stamp_ns > self._tolerance_ns]
        if not late:
            self.dropped['superseded'] += replaced
            far = self._far_from(newest) if all_fresh and not self._waits else None
            self._waits = far is not None
            if far is not None:
                self._drop([far], 'superseded')
                return None
            if all_fresh and self._awaits(newest):
                return None
            return self._emit(newest, arrival_ns)
        self.dropped['out_of_tolerance'] += replaced
        if all_fresh:
            self._drop(late, 'out_of_tolerance')
        return None

    def _far_from(self, newest: int) -> _Slot | None:
        """The camera whose next image will be nearer to the newest than the one it has.

        Only among cameras of one rate, where waiting once is enough for all frames that follow.
        """
        oldest = min(self._required, key=lambda entry: entry.stamp_ns)
        gaps = [entry.gap_ns for entry in self._required]
        alike = min(gaps) > 0 and max(gaps) <= _ALIKE * min(gaps)
        is_far = newest - oldest.stamp_ns > _NEAR * oldest.gap_ns
        return oldest if alike and is_far else None

    def _emit(self, newest: int, arrival_ns: int) -> Observation | None:
        """The observation of the held images, or None (images dropped) if the rest is missing."""
        chosen = [
            entry
            for entry in self._slots.values()
            if entry.rgb is not None and abs(newest - entry.stamp_ns) <= self._tolerance_ns
        ]
        lack = self._lacks(arrival_ns, min(entry.stamp_ns for entry in self._required))
        if lack or self._state is None:
            self._drop(chosen, lack)
            return None
        for entry in chosen:
            self.used += entry.fresh
            entry.fresh = False
        return Observation(
            images={e.camera.slot: e.rgb for e in chosen if e.rgb is not None},
            state=self._units.to_model(self._state_at(newest, self._state)),
            instruction=self._instruction,
            stamp_ns=max(entry.stamp_ns for entry in chosen),
        )

    def _state_at(self, stamp_ns: int, latest: np.ndarray) -> np.ndarray:
        """Joint positions of the moment of the images: the last that are stamped no later.

        The latest if there are none: without stamps, or on another clock.
        """
        found = self._states.at(stamp_ns)
        return latest if found is None else found

    def _lacks(self, now_ns: int, oldest_ns: int) -> str:
        """The reason why complete images are not an observation yet, or ''.

        oldest_ns: the oldest stamp of a required camera's image.
        """
        if self._judge_stamps and now_ns - oldest_ns > self._image_age_ns:
            return 'stale_image'
        if self._state_arrival_ns is None:
            return 'no_joint_state'
        stamp_ns = self._state_stamp_ns or self._state_arrival_ns
        if self._judge_stamps and now_ns - stamp_ns > self._state_age_ns:
            return 'stale_joint_state'
        if not is_fresh(self._state_arrival_ns, now_ns, self._state_age_ns):
            return 'stale_joint_state'
        return '' if self._instruction else 'no_instruction'

    @property
    def _state_name(self) -> str:
        return f'joint state on {self._contract.state.topic}'

    def _times(self) -> Iterator[tuple[str, int, int, int]]:
        """Name, arrival, stamp and age limit of each required input that was heard."""
        for entry in self._required:
            if entry.arrival_ns is not None and entry.last_ns is not None:
                yield entry.name, entry.arrival_ns, entry.last_ns, self._image_age_ns
        if self._state_arrival_ns is not None:
            stamp_ns = self._state_stamp_ns or self._state_arrival_ns
            yield self._state_name, self._state_arrival_ns, stamp_ns, self._state_age_ns

    def _skew(self) -> list[str]:
        """A sentence when the newest stamps of required cameras are too far apart."""
        known = [entry for entry in self._required if entry.last_ns is not None]
        if len(known) < 2:
            return []
        first, last = (pick(known, key=lambda e: e.last_ns or 0) for pick in (min, max))
        skew = (last.last_ns or 0) - (first.last_ns or 0)
        if skew <= self._tolerance_ns:
            return []
        return [
            f'camera {first.camera.slot}: its newest stamp is {skew / 1e9:.3f} s behind '
            f'{last.camera.slot} (sync_tolerance_ms {self._tolerance_ns / 1e6:g}): '
            'check that both use one clock'
        ]

    def _drop(self, entries: list[_Slot], reason: str) -> None:
        for entry in entries:
            self.dropped[reason] += entry.fresh
            entry.rgb, entry.fresh = None, False

    def _forget(self, reason: str) -> None:
        """Drop every image and the joint state, and all that was remembered of their times."""
        self._drop(list(self._slots.values()), reason)
        for entry in self._slots.values():
            entry.last_ns = entry.arrival_ns = None
        self._state, self._state_arrival_ns, self._state_stamp_ns = None, None, 0
        self._states.clear()

"""Gaps and steps back in the inputs of a bag, per topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oxygen_ros.replay.sources import Source
from oxygen_ros.ros.contract import Contract


@dataclass
class _Input:
    """One topic. limit_ns: a longer silence is a gap; 0 knows none."""

    source: Source
    limit_ns: int
    messages: int = 0
    unusable: int = 0
    last_ns: int | None = None
    gaps: int = 0
    longest_ns: int = 0
    longest_at_ns: int = 0
    went_back: int = 0

    def see(self, time_ns: int, record_ns: int) -> None:
        self.messages += 1
        if self.last_ns is not None and self.limit_ns:
            silence_ns = time_ns - self.last_ns
            self.went_back += silence_ns < 0
            self.gaps += silence_ns > self.limit_ns
            if silence_ns > max(self.limit_ns, self.longest_ns):
                self.longest_ns, self.longest_at_ns = silence_ns, record_ns
        self.last_ns = time_ns


class Watch:
    """Sees every message that is fed, by its stamp where it has one."""

    def __init__(self, sources: dict[str, Source], contract: Contract, start_ns: int) -> None:
        timing = contract.timing
        limits = {
            'image': timing.image_max_age_ms,
            'compressed': timing.image_max_age_ms,
            'state': timing.state_max_age_ms,
        }
        self._start_ns = start_ns
        self._inputs = {
            topic: _Input(source, round(limits.get(source.kind, 0) * 1e6))
            for topic, source in sources.items()
        }

    def see(self, topic: str, stamp_ns: int, record_ns: int) -> None:
        """One message; stamp_ns is 0 where it has none."""
        self._inputs[topic].see(stamp_ns or record_ns, record_ns)

    def unusable(self, topic: str) -> None:
        """One message that was dropped for what it is."""
        self._inputs[topic].unusable += 1

    def rows(self) -> list[dict[str, Any]]:
        """Plain data, one row a topic."""
        return [
            {
                'topic': topic,
                'used_as': entry.source.slot or entry.source.kind,
                'messages': entry.messages,
                'unusable': entry.unusable,
                'gaps': entry.gaps,
                'longest_gap_ms': entry.longest_ns / 1e6,
                'went_back': entry.went_back,
            }
            for topic, entry in sorted(self._inputs.items())
        ]

    def notes(self) -> list[str]:
        """A sentence on every topic with gaps or stamps that go back."""
        found = []
        for topic, entry in sorted(self._inputs.items()):
            if entry.gaps:
                at_s = (entry.longest_at_ns - self._start_ns) / 1e9
                found.append(
                    f'{topic}: {entry.gaps} gaps longer than {entry.limit_ns / 1e6:g} ms, the '
                    f'longest of {entry.longest_ns / 1e9:.2f} s ends {at_s:.2f} s into the bag'
                )
            if entry.went_back:
                found.append(
                    f'{topic}: stamps go back {entry.went_back} times: images, actions and words '
                    'from before are dropped there'
                )
        return found

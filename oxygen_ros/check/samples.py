"""The first messages of an input, read by the same conversions as the node's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oxygen_ros.replay.sources import Source
from oxygen_ros.ros.contract import Contract
from oxygen_ros.ros.conversions import (
    ConversionError,
    compressed_to_rgb,
    image_to_rgb,
    instruction_text,
    joint_vector,
)
from oxygen_ros.types import Finding, Verdict

COUNT = 10  # messages of each input that are looked at


@dataclass
class Samples:
    """What could be used and what could not. good: descriptions; bad: reasons."""

    contract: Contract
    source: Source
    good: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)

    def take(self, message: Any) -> None:
        """Convert a message as the node would."""
        try:
            self.good.append(_read(self.source, message, self.contract))
        except ConversionError as error:
            self.bad.append(str(error))

    def finding(self, check: str, found: str, needed: str, rate_hz: float) -> Finding:
        """The verdict on an input whose messages come at this rate, 0 if it is not known."""
        if self.good:
            found = f'{found}, {self.good[0]}'
        if self.bad and not self.good:
            return Finding(check, found, needed, Verdict.MISFIT, self.bad[0])
        remarks = self._remarks(rate_hz)
        verdict = Verdict.NOTE if remarks else Verdict.OK
        return Finding(check, found, needed, verdict, '; '.join(remarks))

    def _remarks(self, rate_hz: float) -> list[str]:
        remarks = []
        if self.bad:
            total = len(self.good) + len(self.bad)
            remarks.append(
                f'{len(self.bad)} of the first {total} messages are dropped: {self.bad[0]}'
            )
        age_ms = self.contract.timing.state_max_age_ms
        if self.source.kind == 'state' and 0 < rate_hz < 1000 / age_ms:
            remarks.append(
                f'{rate_hz:.1f} messages a second are too few for state_max_age_ms {age_ms:g}, '
                f'which needs {1000 / age_ms:.1f}: frames are dropped in between'
            )
        return remarks


def heard(topic: str, count: int, rate_hz: float) -> str:
    """How much came on a topic; a rate of 0 is not known."""
    rate = f', {rate_hz:.1f}/s' if rate_hz else ''
    return f'{topic}: {count} message{"s" * (count != 1)}{rate}'


def _read(source: Source, message: Any, contract: Contract) -> str:
    """A few words on the message. Raises ConversionError."""
    if source.kind == 'state':
        joint_vector(message, contract.state.names)
        return f'{len(message.name)} joints'
    if source.kind == 'instruction':
        return repr(instruction_text(message)[:40])
    compressed = source.kind == 'compressed'
    height, width, _ = (compressed_to_rgb if compressed else image_to_rgb)(message).shape
    return f'{message.format if compressed else message.encoding} {width}x{height}'

"""What the numbers should be, beside what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

# chip -> the most ms, at full size: a frame without language (3 cameras), decode step of 8 rows
_CHIPS = {'H200': (25.0, 5.0)}


class Bar(NamedTuple):
    """One aim. most: the value must not be above it, else not below."""

    name: str
    value: float
    bar: float
    most: bool

    @property
    def held(self) -> bool:
        """Whether it is met."""
        return self.value <= self.bar if self.most else self.value >= self.bar

    def report(self) -> dict[str, Any]:
        """As in the JSON."""
        aim = {'at_most' if self.most else 'at_least': self.bar}
        return {'name': self.name, 'value': self.value, **aim, 'held': self.held}

    def line(self) -> str:
        """As printed."""
        sign = '<=' if self.most else '>='
        return f'{self.name}: {self.value:.3g} (aim {sign} {self.bar:g}: {_judged(self.held)})'


def bars(result: dict[str, Any]) -> list[Bar]:
    """Every aim that this result has a number for."""
    return [Bar(*each) for each in _bars(result)]


def _bars(result: dict[str, Any]) -> Iterator[tuple[str, float, float, bool]]:
    setting, times = result['setting'], result.get('phases_ms', {})
    if 'speedup' in result:
        least = 3.7 if setting['device'].startswith('cuda') else 2.2
        yield 'speed-up', result['speedup'], least, False
        yield 'realised over ideal', result['realised_over_ideal'], 0.95, False
    rates = result.get('decode_tok_per_s', {})
    if {'1', '6'} <= rates.keys():
        yield 'tok/s of 6 rows over 1 row', rates['6'] / rates['1'], 4.0, False
    for name, label in (
        ('kv_bytes_copied', 'KV bytes copied between frames'),
        ('captures_after_ready', 'captures after ready'),
    ):
        if name in result:
            yield label, result[name], 0, True
    chip = next((bars for name, bars in _CHIPS.items() if name in setting['chip']), None)
    if chip and setting['size'] == 'full' and 'decode_8' in times:
        yield 'frame without language, ms', result['frame_without_language_ms'], chip[0], True
        yield 'decode step of 8 rows, ms', times['decode_8'], chip[1], True
    arrivals = result.get('arrivals', {})
    if 'camera_to_chunk_p99_ratio' in arrivals:
        ratio = arrivals['camera_to_chunk_p99_ratio']
        yield 'camera to chunk p99, with language over without', ratio, 1.2, True


def _judged(held: bool) -> str:
    return 'held' if held else 'MISSED'

"""What a run is asked for: flags read and checked, before anything is built."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from oxygen_ros.bench.families import FAMILIES, STEPS
from oxygen_ros.bench.flags import budgets, positive, several, whole
from oxygen_ros.bench.outputs import Outputs, check_outputs
from oxygen_ros.bench.run import growth_cases, growth_room
from oxygen_ros.bench.setting import Setting
from oxygen_ros.bench.sweep import Grid
from oxygen_ros.checkpoint.random_pi05 import SIZES
from oxygen_ros.devices import find_device
from oxygen_ros.engine.execution import NAMES
from oxygen_ros.engine.request import MODES, Limits
from oxygen_ros.policy import DTYPES
from oxygen_ros.types import OxygenError

# The paper's workload: 3 cameras, 10 steps, one request of 30 tokens a frame, 5 steps a frame.
PRESETS = {
    'paper': Setting(),
    'sweep': Setting(),
    'arrivals': Setting(budget='auto'),
    'growth': Setting(),
    'tiny': Setting(size='tiny', dtype='float32', prompt_tokens=40),
}
CLOSED_BUDGET = 5  # where 'auto' has no camera whose next frame is due
LISTS = ('denoise_steps', 'tokens', 'budget')  # flags that take several values in a sweep


@dataclass(frozen=True)
class Plan:
    """One run. grid: of a sweep. closed: the setting of modes in turn."""

    preset: str
    setting: Setting
    grid: Grid
    modes: Sequence[str]
    rounds: int
    frames: int
    frame_hz: float
    request_hz: float
    seconds: float
    outputs: Outputs

    @property
    def closed(self) -> Setting:
        """Where the next frame comes when the last one's work is done, none is due."""
        if self.setting.budget != 'auto':
            return self.setting
        return replace(self.setting, budget=CLOSED_BUDGET)

    @property
    def room(self) -> Setting:
        """What the model is built for."""
        return growth_room(self.setting) if self.preset == 'growth' else self.setting

    @property
    def pools(self) -> list[Limits]:
        """Of the engines that live at once, in the part of the run where they are largest."""
        if self.preset == 'growth':
            return [self.room.limits()] * len(growth_cases(self.setting))
        parts = [[self.closed.limits()] * (len(self.modes) + 1)]
        if self.preset == 'sweep':
            parts.append([self.grid.room(self.setting).limits()])
        if self.preset == 'arrivals':
            parts.append([self.setting.limits(longest=2)])
        return max(parts, key=lambda pools: sum(p.max_rows * p.max_new_tokens for p in pools))


def read_plan(argv: Sequence[str] | None) -> Plan:
    """From the command line. Raises OxygenError, and SystemExit by argparse."""
    given = _parser().parse_args(argv)
    _check_rates(given)
    return Plan(
        given.preset,
        _setting(given),
        _grid(given),
        _modes(given.modes),
        given.rounds,
        given.frames,
        given.frame_hz,
        given.request_hz,
        given.seconds,
        check_outputs(given.json, given.trace, given.plots),
    )


def _setting(given: argparse.Namespace) -> Setting:
    setting = PRESETS[given.preset]
    names = ('family', 'size', 'device', 'dtype', 'execution', 'cameras', 'prompt_tokens')
    chosen: dict[str, Any] = {
        name: value for name in (*names, 'horizon') if (value := getattr(given, name)) is not None
    }
    setting = replace(setting, **chosen)
    setting = replace(setting, denoise_steps=STEPS[setting.family])
    firsts = {name: _first(given, name) for name in LISTS}
    find_device(setting.device)
    return replace(setting, **{name: value for name, value in firsts.items() if value})


def _first(given: argparse.Namespace, name: str) -> Any:
    """The value that modes in turn are measured at, or None. A sweep may have several, and 0."""
    values, flag = getattr(given, name), '--' + name.replace('_', '-')
    if values is None:
        return None
    if given.preset == 'sweep':
        if isinstance(values[0], str):
            raise OxygenError(f'{flag} is {values[0]!r}: in preset sweep allowed are numbers')
        return next((value for value in values if value), None)
    if len(values) > 1:
        raise OxygenError(f'{flag} has {len(values)} values: allowed are several in preset sweep')
    if values[0] == 0:
        raise OxygenError(
            f'{flag} is 0: no words would be delivered, and there would be no equal work to '
            "compare; allowed are 1 or more, 'auto' or 'unlimited', and 0 in preset sweep"
        )
    return values[0]


def _grid(given: argparse.Namespace) -> Grid:
    chosen = {'denoise_steps': given.denoise_steps, 'tokens': given.tokens}
    if given.preset == 'sweep':
        chosen['budgets'] = given.budget
    return Grid(**{name: values for name, values in chosen.items() if values is not None})


def _modes(text: str) -> list[str]:
    modes = list(dict.fromkeys(text.split(',')))
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise OxygenError(f'unknown modes {", ".join(unknown)}, allowed: {", ".join(MODES)}')
    return modes


def _check_rates(given: argparse.Namespace) -> None:
    if given.preset == 'arrivals' and min(given.seconds, 2.0) * given.frame_hz < 1:
        raise OxygenError(
            f'--seconds {given.seconds:g} at --frame-hz {given.frame_hz:g} are less than one '
            'frame in the first two seconds: raise one of them'
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m oxygen_ros.bench', description=__doc__)
    add, count = parser.add_argument, whole(1)
    add('--preset', choices=sorted(PRESETS), default='paper')
    add('--family', choices=sorted(FAMILIES))
    add('--size', choices=sorted(SIZES))
    add('--device')
    add('--dtype', choices=sorted(DTYPES))
    add('--execution', choices=NAMES)
    add('--modes', default=','.join(MODES))
    add('--cameras', type=count)
    add('--prompt-tokens', type=count)
    add('--horizon', type=count)
    add('--denoise-steps', type=several(count), help='sweep: several, with commas, as the next 2')
    add('--tokens', type=several(count), help='of the one answer a frame')
    add('--budget', type=budgets, help="decode steps per frame, 'auto' or 'unlimited'")
    add('--rounds', type=count, default=3, help='of all modes in turn')
    add('--frames', type=count, default=6, help='of each mode in a round, of each point in sweep')
    add('--frame-hz', type=positive, default=7.0, help='arrivals: of the camera')
    add('--request-hz', type=positive, default=2.0, help='arrivals: of requests')
    add('--seconds', type=positive, default=10.0, help='arrivals: of each pattern')
    add('--json', metavar='FILE')
    add('--trace', metavar='FILE', help='one second of phases, for ui.perfetto.dev')
    add('--plots', metavar='FOLDER', help='pictures; needs matplotlib')
    return parser

"""What each mode gives at other numbers of denoise steps, tokens and decode steps per frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from oxygen_ros.bench.measure import Samples, Session
from oxygen_ros.bench.report import mode_numbers
from oxygen_ros.bench.setting import Setting
from oxygen_ros.models.pi05 import Pi05


@dataclass(frozen=True)
class Grid:
    """Every combination is a point; k counts in `continuous` alone and is at most T there."""

    denoise_steps: Sequence[int] = (5, 10, 15, 20)
    tokens: Sequence[int] = (5, 10, 15, 20, 30)
    budgets: Sequence[int] = (0, 1, 2, 5, 10, 15, 30)

    def points(self, setting: Setting, mode: str) -> list[Setting]:
        """Those of one mode at the setting's denoise steps. k = 0: one point, without words."""
        if mode != 'continuous':
            return [replace(setting, tokens=tokens, budget=tokens) for tokens in self.tokens]
        silent = [replace(setting, tokens=0, budget=0)] * (0 in self.budgets)
        return silent + [
            replace(setting, tokens=tokens, budget=k)
            for tokens in self.tokens
            for k in sorted({min(k, tokens) for k in self.budgets if k})
        ]

    def room(self, setting: Setting) -> Setting:
        """What an engine must have room for, to run every point."""
        least = min((k for k in self.budgets if k), default=max(self.tokens))
        return replace(setting, tokens=max(self.tokens), budget=least)


def run_sweep(
    result: dict[str, Any],
    model: Pi05,
    setting: Setting,
    grid: Grid,
    modes: Sequence[str],
    frames: int,
) -> None:
    """Every point of the grid in turn; a mode keeps its engine for one number of denoise steps."""
    points: list[dict[str, Any]] = []
    result['sweep'] = points
    for steps in tqdm(grid.denoise_steps, 'sweep', disable=None):
        at = replace(setting, denoise_steps=steps)
        for mode in modes:
            session = Session(model, at, mode, grid.room(at))
            for point in grid.points(at, mode):
                session.change(point)
                session.warm_up()
                samples = Samples()
                session.run(frames, samples)
                where = {'mode': mode, 'denoise_steps': steps, 'tokens': point.tokens}
                if mode == 'continuous':
                    where['budget'] = point.budget
                points.append({**where, **mode_numbers(samples, setting.horizon)})

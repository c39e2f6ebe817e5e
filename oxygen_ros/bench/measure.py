"""Runs modes in turn on one model and times what performance comparisons are made of."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch

from oxygen_ros.bench.families import make_inputs
from oxygen_ros.bench.setting import Setting, build_engine
from oxygen_ros.bench.timeline import synchronise
from oxygen_ros.engine.budget import make_budget
from oxygen_ros.engine.engine import Engine, FrameAnswer
from oxygen_ros.engine.request import FrameState, RequestState
from oxygen_ros.engine.scheduler import Decode
from oxygen_ros.models.pi05 import Pi05
from oxygen_ros.types import LanguageRequest

Result = TypeVar('Result')


@dataclass
class Samples:
    """What one mode did, a value per frame or per request, times in ms."""

    frame_ms: list[float] = field(default_factory=list)
    chunk_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    tokens: int = 0


class Session:
    """One mode in closed loop: the next frame comes when the last one's work is done.

    roomy: a setting with the most rows and tokens that change() will ask for.
    """

    def __init__(
        self, model: Pi05, setting: Setting, mode: str, roomy: Setting | None = None
    ) -> None:
        self.engine = build_engine(model, roomy or setting, mode, 'unlimited')
        self._mode = mode
        self.change(setting)
        self._inputs = [make_inputs(model, setting, number) for number in range(3)]
        spec = model.spec
        self._noise = torch.randn(spec.horizon, spec.action_dim)
        self._number = 0

    def change(self, setting: Setting) -> None:
        """Go on with other tokens and another budget; what runs is cancelled."""
        self._setting = setting
        self._asked: dict[str, int] = {}  # request -> when, ns
        self.engine.cancel()
        self.engine.step()
        budget = setting.budget if self._mode == 'continuous' else 'unlimited'
        self.engine.scheduler.budget = make_budget(budget)

    def warm_up(self) -> None:
        """Reach the steady state: answers of as many frames as there are rows overlap in it."""
        overlapping = self._setting.rows if self._mode == 'continuous' else 0
        self.run(overlapping + 1, Samples())

    def run(self, frames: int, into: Samples) -> None:
        """Answer so many frames, one request each."""
        for _ in range(frames):
            began = time.perf_counter_ns()
            self._offer()
            while not self.engine.idle:
                self._note(began, into)
            into.frame_ms.append((time.perf_counter_ns() - began) / 1e6)

    def _offer(self) -> None:
        number, self._number = self._number, self._number + 1
        if self._setting.tokens:
            name = str(number)
            self._asked[name] = time.perf_counter_ns()
            self.engine.submit(LanguageRequest(name, max_tokens=self._setting.tokens), [])
        self.engine.observe(number, self._inputs[number % len(self._inputs)], self._noise)

    def _note(self, began: int, into: Samples) -> None:
        outputs = self.engine.step()
        now = time.perf_counter_ns()
        for output in outputs:
            if isinstance(output, FrameAnswer):
                assert output.actions is not None, output.problem
                into.chunk_ms.append((now - began) / 1e6)
                continue
            into.tokens += output.token is not None
            if output.index == 0:
                into.ttft_ms.append((now - self._asked.pop(output.state.id)) / 1e6)


class Phases:
    """Times prefill, action loop and decode steps of given row counts by themselves.

    Decode steps come one after another as they do in the modes, where the first finds other data
    in the processor's caches than the rest: T steps of one row, k of several; their mean counts.
    """

    def __init__(self, engine: Engine, model: Pi05, setting: Setting, rows: Sequence[int]) -> None:
        self._runner, self._model = engine.runner, model
        self._setting = setting
        noise = torch.randn(setting.horizon, model.spec.action_dim)
        self._frame = FrameState(0, 0, make_inputs(model, setting, 0), noise)
        self.times: dict[str, list[float]] = {}
        self.rows = rows
        self._steps = {count: self._plan(count) for count in rows}

    def _plan(self, count: int) -> Decode:
        """A decode step in the middle of `count` answers; running it changes no books."""
        length = self._model.prefix_length(self._frame.inputs) + self._setting.tokens // 2
        states = []
        for row in range(count):
            state = RequestState(LanguageRequest(str(row)), [], row, None)
            state.row, state.length, state.tokens = row, length, [5]
            states.append(state)
        return Decode(tuple(states))

    def warm_up(self) -> None:
        """Run every phase once and forget the times."""
        self.run()
        self.times.clear()

    @torch.no_grad()
    def run(self) -> None:
        """One round of every phase."""
        prefilled = self._timed('prefill', lambda: self._runner.prefill(self._frame, 0))
        self._timed('act', lambda: self._runner.act(self._frame, prefilled, 0).cpu())
        for count, plan in self._steps.items():
            repeats = self._setting.tokens if count == 1 else self._setting.steps_per_frame
            self._timed(f'decode_{count}', partial(self._runner.decode, plan), max(repeats, 1))

    def _timed(self, name: str, call: Callable[[], Result], repeats: int = 1) -> Result:
        began = time.perf_counter_ns()
        for _ in range(repeats):
            result = call()
        synchronise(self._model.device)
        took = (time.perf_counter_ns() - began) / 1e6 / repeats
        self.times.setdefault(name, []).append(took)
        return result


def median(values: Sequence[float]) -> float:
    """Median, or 0.0 of nothing."""
    return statistics.median(values) if values else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

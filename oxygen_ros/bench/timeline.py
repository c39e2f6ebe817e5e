"""When each phase ran: recorded around the runner, drawn as a picture or opened in Perfetto."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oxygen_ros.engine.engine import Engine

# phase -> rows that a call of the runner's function of that name advances
PHASES: dict[str, Callable[..., int]] = {
    'prefill': lambda *_: 0,
    'act': lambda *_: 0,
    'admit': lambda *_: 1,
    'decode': lambda plan: len(plan.requests),
}


@dataclass(frozen=True)
class Span:
    """One phase, in ns of a steady clock. rows: language rows it advanced."""

    phase: str
    began_ns: int
    ended_ns: int
    rows: int = 0


class Timeline:
    """Wraps an engine's runner while it records: every way to run a model goes through that.

    The device is waited for at both ends of a phase, so that a span is work and not its launch.
    In `isolated` an admission has a prefill of its own inside.
    """

    def __init__(self, engine: Engine) -> None:
        self.spans: list[Span] = []
        self._runner: Any = engine.runner
        self._device = engine.model.device

    def __enter__(self) -> Timeline:
        for phase in PHASES:
            self._wrap(phase)
        return self

    def __exit__(self, *_: object) -> None:
        for phase in PHASES:
            delattr(self._runner, phase)

    def _wrap(self, phase: str) -> None:
        inner, rows = getattr(self._runner, phase), PHASES[phase]

        def timed(*args: Any) -> Any:
            synchronise(self._device)
            began = time.perf_counter_ns()
            result = inner(*args)
            synchronise(self._device)
            self.spans.append(Span(phase, began, time.perf_counter_ns(), rows(*args)))
            return result

        setattr(self._runner, phase, timed)

    def write_trace(self, path: Path) -> None:
        """Chrome's trace format, which ui.perfetto.dev opens."""
        first = min((span.began_ns for span in self.spans), default=0)
        names = [
            {'name': 'thread_name', 'ph': 'M', 'pid': 0, 'tid': level, 'args': {'name': phase}}
            for level, phase in enumerate(PHASES)
        ]
        levels = list(PHASES)
        events = [
            {
                'name': span.phase,
                'ph': 'X',
                'pid': 0,
                'tid': levels.index(span.phase),
                'ts': (span.began_ns - first) / 1e3,
                'dur': (span.ended_ns - span.began_ns) / 1e3,
                'args': {'rows': span.rows},
            }
            for span in self.spans
        ]
        path.write_text(json.dumps({'traceEvents': [*names, *events]}), encoding='utf-8')


def synchronise(device: torch.device) -> None:
    """Wait until a device has done what it was given."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)

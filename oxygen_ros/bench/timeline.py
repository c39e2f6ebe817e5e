"""When each phase ran: recorded around the runner, drawn as a picture or opened in Perfetto."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxygen_ros.engine.engine import Engine

PHASES = ('prefill', 'act', 'admit', 'decode')


@dataclass(frozen=True)
class Span:
    """One phase, in ns of a steady clock. rows: language rows it advanced."""

    phase: str
    began_ns: int
    ended_ns: int
    rows: int = 0


class Timeline:
    """Wraps an engine's runner and model while it records; the wrapped functions are restored."""

    def __init__(self, engine: Engine) -> None:
        self.spans: list[Span] = []
        self._runner: Any = engine.runner
        self._model: Any = engine.model

    def __enter__(self) -> Timeline:
        self._wrap(self._runner, 'prefill', 'prefill', lambda *_: 0)
        self._wrap(self._model, 'act', 'act', lambda *_: 0)
        self._wrap(self._runner, 'admit', 'admit', lambda *_: 1)
        self._wrap(self._runner, 'decode', 'decode', lambda plan: len(plan.requests))
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name in ((self._runner, 'prefill'), (self._model, 'act')):
            delattr(owner, name)
        for name in ('admit', 'decode'):
            delattr(self._runner, name)

    def _wrap(self, owner: Any, name: str, phase: str, rows: Callable[..., int]) -> None:
        inner = getattr(owner, name)

        def timed(*args: Any, **keywords: Any) -> Any:
            began = time.perf_counter_ns()
            result = inner(*args, **keywords)
            self.spans.append(Span(phase, began, time.perf_counter_ns(), rows(*args)))
            return result

        object.__setattr__(owner, name, timed)

    def write_trace(self, path: Path) -> None:
        """Chrome's trace format, which ui.perfetto.dev opens."""
        first = min((span.began_ns for span in self.spans), default=0)
        events = [
            {
                'name': span.phase,
                'ph': 'X',
                'pid': 0,
                'tid': PHASES.index(span.phase),
                'ts': (span.began_ns - first) / 1e3,
                'dur': (span.ended_ns - span.began_ns) / 1e3,
                'args': {'rows': span.rows},
            }
            for span in self.spans
        ]
        path.write_text(json.dumps({'traceEvents': events}), encoding='utf-8')

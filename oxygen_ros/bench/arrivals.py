"""Open loop: frames come at a camera's rate and requests at random, whether or not all is done."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field

import numpy as np
import torch

from oxygen_ros.bench.families import make_inputs
from oxygen_ros.bench.measure import median, quantile
from oxygen_ros.bench.setting import Setting, build_engine
from oxygen_ros.engine.engine import Engine, FrameAnswer
from oxygen_ros.models.pi05 import Pi05
from oxygen_ros.types import LanguageRequest

PATTERNS = ('none', 'uniform', 'poisson', 'bursty', 'mixed')


@dataclass
class Arrivals:
    """What came of one pattern; times in ms."""

    chunk_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    answer_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    frames: int = 0
    frames_replaced: int = 0
    refused: int = 0
    seconds: float = 0.0

    def numbers(self) -> dict[str, float]:
        """Medians, tails and rates."""
        return {
            'camera_to_chunk_ms_p50': median(self.chunk_ms),
            'camera_to_chunk_ms_p99': quantile(self.chunk_ms, 0.99),
            'camera_to_chunk_ms_n': len(self.chunk_ms),
            'ttft_ms_p50': median(self.ttft_ms),
            'answer_ms_p50': median(self.answer_ms),
            'tok_per_s': self.tokens / self.seconds,
            'chunks_per_s': len(self.chunk_ms) / self.seconds,
            'frames': self.frames,
            'frames_replaced': self.frames_replaced,
            'refused': self.refused,
        }


def request_times(pattern: str, rate: float, seconds: float, seed: int) -> list[float]:
    """Seconds at which requests come, on average `rate` of them per second."""
    random = np.random.default_rng(seed)
    count = int(rate * seconds)
    if pattern == 'none' or not count:
        return []
    if pattern in ('uniform', 'mixed'):
        return [(index + 0.5) / rate for index in range(count)]
    if pattern == 'poisson':
        return [float(at) for at in np.cumsum(random.exponential(1 / rate, count))]
    assert pattern == 'bursty', pattern
    return [4 * (index // 4) / rate for index in range(count)]


class OpenLoop:
    """One engine fed by the clock. mixed: answers of 5 to 2 T tokens instead of T."""

    def __init__(self, model: Pi05, setting: Setting, mode: str) -> None:
        self._setting, self._model = setting, model
        self.engine: Engine = build_engine(model, setting, mode, setting.budget, longest=2)
        self._inputs = [make_inputs(model, setting, number) for number in range(3)]
        self._noise = torch.randn(model.spec.horizon, model.spec.action_dim)
        self._at: dict[str, float] = {}  # frame or request -> when it came

    def run(self, pattern: str, frame_hz: float, request_hz: float, seconds: float) -> Arrivals:
        """Play one pattern in real time."""
        events = [(number / frame_hz, 'frame') for number in range(int(seconds * frame_hz))]
        asked = request_times(pattern, request_hz, seconds, seed=0)
        events += [(at, 'request') for at in asked if at < seconds]
        heapq.heapify(events)
        result = Arrivals()
        self._at.clear()
        lengths = np.random.default_rng(1).integers(
            5, 2 * max(self._setting.tokens, 3), len(asked)
        )
        began = time.perf_counter()
        while events or not self.engine.idle:
            now = time.perf_counter() - began
            while events and events[0][0] <= now:
                at, kind = heapq.heappop(events)
                self._arrive(kind, began + at, result, lengths if pattern == 'mixed' else None)
            if self.engine.idle:
                if not events:
                    break
                time.sleep(max(0.0, events[0][0] - (time.perf_counter() - began)))
                continue
            self._step(result)
        result.seconds = time.perf_counter() - began
        self.engine.cancel()
        self.engine.step()
        return result

    def _arrive(self, kind: str, at: float, result: Arrivals, lengths: np.ndarray | None) -> None:
        if kind == 'frame':
            inputs = self._inputs[result.frames % len(self._inputs)]
            number = self.engine.observe(result.frames, inputs, self._noise)
            self._at[f'frame {number}'] = at
            result.frames += 1
            return
        serial = len(self._at)
        tokens = self._setting.tokens if lengths is None else int(lengths[serial % len(lengths)])
        self._at[f'request {serial}'] = at
        self.engine.submit(LanguageRequest(f'request {serial}', max_tokens=tokens), [])

    def _step(self, result: Arrivals) -> None:
        outputs = self.engine.step()
        now = time.perf_counter()
        for output in outputs:
            if isinstance(output, FrameAnswer):
                took = 1e3 * (now - self._at[f'frame {output.frame.number}'])
                if output.actions is None:
                    result.frames_replaced += 1
                else:
                    result.chunk_ms.append(took)
                continue
            took = 1e3 * (now - self._at[output.state.id])
            result.tokens += output.token is not None
            if output.token is not None and output.index == 0:
                result.ttft_ms.append(took)
            if output.reason is not None:
                result.answer_ms.append(took)
                result.refused += output.reason.value == 'refused'

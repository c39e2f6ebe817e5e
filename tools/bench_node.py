"""Measure the node as a robot sees it: how steady, how late, and what it adds around the engine.

    python tools/bench_node.py --json out.json [--seconds 60]

Processes: the node (tiny model with random weights), a robot (three 640x480 rgb8 cameras and joint
states at 30 Hz), and this one, which listens and asks. Words are off and on in turn.

interval_dev_ms: |interval - 1/rate| between two messages on ~/action, by the time at which the
    node's DDS writer took them (source timestamp). received_dev_ms: the same by this process's DDS
    reader, which adds the transport and this machine's scheduling.
missed_ticks: the larger of the node's own count and of what its messages lack.
node_overhead_ms: measured by the node for each answered frame: (newest image's callback begins ->
    handed to the worker) + (that, or the engine's last step ended if later -> policy.observe
    begins) + (the step that answered it ends -> ~/action_chunk is published). What the engine
    does in between, words of other frames included, is not the node's.
camera_to_chunk_ms: from the newest image's stamp (set right before it is published) to the
    publication of its chunk. camera_to_chunk_p99_ratio: with words by without.
chunk_end_to_published_ms: from inference_end to the publication of the chunk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import node_setting
import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import String

from oxygen_ros import msg
from oxygen_ros.demo.processes import Processes
from oxygen_ros.ros import process, qos
from oxygen_ros.ros.conversions import stamp_ns, time_ns

SEGMENT_S = 5.0
SETTLE_S = 0.5  # at the beginning of each segment, not measured for camera_to_chunk
OPEN_REQUESTS = 4
START_TIMEOUT_S = 90.0


def main() -> int:
    """Measure, print, write the JSON; returns 0, or 1 if the node did not serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--json', type=Path, help='where the numbers go')
    parser.add_argument('--seconds', type=float, default=60.0)
    parser.add_argument('--rate', type=float, default=30.0, help='of the cameras, in Hz')
    parser.add_argument('--language', choices=('alternating', 'on', 'off'), default='alternating')
    parser.add_argument('--set', action='append', default=[], metavar='NAME=VALUE')
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(given, Path(folder))
    text = json.dumps(report, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + '\n')
    return 0


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the processes and return the report."""
    overrides = dict(pair.split('=', 1) for pair in given.set)
    params = node_setting.write_setting(folder, **{k: _number(v) for k, v in overrides.items()})
    variables = node_setting.environment()
    os.environ.update(variables)
    with Processes(folder, variables) as processes, _listener() as listener:
        processes.start('node', 'oxygen_ros.ros.node', '--ros-args', '--params-file', str(params))
        robot = ('--joints', *node_setting.JOINTS, '--rate', str(given.rate))
        processes.start('robot', 'robot_source', '--cameras', *node_setting.TOPICS, *robot)
        if not listener.wait_until_served(START_TIMEOUT_S):
            log = (folder / 'node.log').read_text(errors='replace')
            raise SystemExit(f'the node does not serve: {listener.state}\n{log[-3000:]}')
        began = node_setting.machine()
        listener.run(given.seconds, given.language)
        problems = processes.stop(10.0)
        note = (folder / 'node.log').read_text(errors='replace')
    return {
        **listener.report(),
        'setting': {
            'model': 'tiny, random weights, float32, cpu, 1 thread',
            'cameras': f'3 x 640x480 rgb8, {given.rate:g} Hz, one process, Fast DDS shared memory',
            'action_rate_hz': node_setting.RATE_HZ,
            'language': f'{given.language}, segments of {SEGMENT_S:g} s, {OPEN_REQUESTS} open',
            'parameters': overrides,
        },
        'seconds': given.seconds,
        'machine': began,
        'load_average_at_end': node_setting.machine()['load_average'],
        'problems': problems,
        'warnings': [line for line in note.splitlines() if '[WARN]' in line or 'ERROR' in line],
    }


class Listener:
    """Keeps the times of what the node publishes, and keeps questions open."""

    def __init__(self, executor: SingleThreadedExecutor) -> None:
        self._executor = executor
        self._node = node = rclpy.create_node('bench')
        executor.add_node(node)
        self.state = 'nothing heard of it'
        self._published: list[int] = []  # ns, one per ~/action
        self._received: list[int] = []
        self._latency_ms: dict[bool, list[float]] = {False: [], True: []}
        self._to_begin_ms: dict[bool, list[float]] = {False: [], True: []}
        self._after_ms: list[float] = []
        self._tokens = 0
        self._ended: Counter[str] = Counter()
        self._open: set[str] = set()
        self._asked = 0
        self._asking = False
        self._words: bool | None = None  # None while nothing is measured
        self._recording = False
        self._diagnostics: dict[str, str] = {}
        self._missed_before = 0
        hear = node.create_subscription
        hear(msg.EngineStatus, 'oxygen/status', self._on_status, qos.STATUS)
        hear(DiagnosticArray, '/diagnostics', self._on_diagnostics, qos.DIAGNOSTICS)
        hear(msg.ActionStep, 'oxygen/action', self._on_step, qos.ACTION)
        hear(msg.ActionChunk, 'oxygen/action_chunk', self._on_chunk, qos.CHUNK)
        hear(msg.LanguageToken, 'oxygen/language/conversation', self._on_token, qos.TOKEN)
        self._request = node.create_publisher(
            msg.LanguageRequest, 'oxygen/language/request', qos.REQUEST
        )
        self._cancel = node.create_publisher(String, 'oxygen/language/cancel', qos.REQUEST)

    def wait_until_served(self, timeout_s: float) -> bool:
        """Until a question was answered in words and the actions have streamed for a while."""
        deadline = time.monotonic() + timeout_s
        while not self._ended and time.monotonic() < deadline:
            if self.state == 'serving':
                self._open.clear()  # a question of the time before is lost
                self._ask(True)
            self._spin(2.0)
        self._ask(False)
        return bool(self._ended)

    def run(self, seconds: float, language: str) -> None:
        """Segments without and with words."""
        self._missed_before = self._missed()
        self._recording = True
        for number in range(max(round(seconds / SEGMENT_S), 1)):
            words = language == 'on' or (language == 'alternating' and number % 2 == 1)
            self._segment(words, min(SEGMENT_S, seconds))
        self._recording = False
        self._cancel.publish(String())
        self._spin(1.0)  # the last diagnostics

    def _segment(self, words: bool, seconds: float) -> None:
        if not words:
            self._cancel.publish(String())
        self._ask(words)
        self._spin(SETTLE_S)
        self._words = words
        self._spin(seconds - SETTLE_S)
        self._words = None
        self._asking = False

    def _spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)

    def _ask(self, words: bool) -> None:
        self._asking = words
        while words and len(self._open) < OPEN_REQUESTS:
            self._asked += 1
            name = f'bench-{self._asked}'
            self._open.add(name)
            self._request.publish(
                msg.LanguageRequest(
                    id=name, task='conversation', prompt='what do you see?', max_tokens=30
                )
            )

    def _missed(self) -> int:
        return int(self._diagnostics.get('missed_ticks', 0))

    def _on_status(self, message: msg.EngineStatus) -> None:
        self.state = message.state

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for entry in message.status:
            self._diagnostics.update({pair.key: pair.value for pair in entry.values})

    def _on_step(self, message: msg.ActionStep, info: Mapping[str, int]) -> None:
        if self._recording:
            self._published.append(info['source_timestamp'])
            self._received.append(info['received_timestamp'])

    def _on_chunk(self, message: msg.ActionChunk, info: Mapping[str, int]) -> None:
        if self._words is None:
            return
        camera, published = stamp_ns(message.header), info['source_timestamp']
        self._latency_ms[self._words].append((published - camera) / 1e6)
        self._to_begin_ms[self._words].append((time_ns(message.inference_begin) - camera) / 1e6)
        self._after_ms.append((published - time_ns(message.inference_end)) / 1e6)

    def _on_token(self, message: msg.LanguageToken) -> None:
        self._tokens += self._words is not None and message.token >= 0
        if message.final:
            self._ended[message.reason] += 1
            self._open.discard(message.id)
            self._ask(self._asking)

    def report(self) -> dict[str, Any]:
        """The numbers; None where a kind of segment was not run."""
        period_ns = 1e9 / node_setting.RATE_HZ
        intervals = np.diff(np.array(self._published))
        # A tick that was only late is none that was missed: its neighbours make up for it.
        missed_here = max(round(float(intervals.sum()) / period_ns) - len(intervals), 0)
        missed_there = self._missed() - self._missed_before
        without, with_words = (_spread(self._latency_ms[words]) for words in (False, True))
        ratio = round(with_words['p99'] / without['p99'], 3) if without and with_words else None
        return {
            'interval_dev_ms': _spread(np.abs(intervals - period_ns) / 1e6),
            'received_dev_ms': _spread(np.abs(np.diff(self._received) - period_ns) / 1e6),
            'missed_ticks': max(missed_here, missed_there),
            'missed_ticks_by_node': missed_there,
            'missed_ticks_by_messages': missed_here,
            'ticks': len(self._published),
            'node_overhead_ms': {
                name: float(self._diagnostics.get(f'node_overhead_ms_{name}', 'nan'))
                for name in ('p50', 'p95', 'p99', 'max')
            },
            'camera_to_chunk_ms': {'without_language': without, 'with_language': with_words},
            'camera_to_chunk_p99_ratio': ratio,
            'camera_to_begin_ms': {
                'without_language': _spread(self._to_begin_ms[False]),
                'with_language': _spread(self._to_begin_ms[True]),
            },
            'chunk_end_to_published_ms': _spread(self._after_ms),
            'engine_step_ms': {
                key.removeprefix('step_ms '): float(value)
                for key, value in self._diagnostics.items()
                if key.startswith('step_ms ')
            },
            'tokens': self._tokens,
            'requests_ended': dict(self._ended),
        }


@contextlib.contextmanager
def _listener() -> Iterator[Listener]:
    process.init_rclpy([])
    try:
        yield Listener(SingleThreadedExecutor())
    finally:
        rclpy.try_shutdown()


def _spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """p50, p95, p99 and max in ms, and how many; empty if there are none."""
    if not len(values):
        return {}
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    rounded = {'p50': p50, 'p95': p95, 'p99': p99, 'max': np.max(values)}
    return {**{k: round(float(v), 3) for k, v in rounded.items()}, 'count': len(values)}


def _number(text: str) -> object:
    import yaml

    return yaml.safe_load(text)


if __name__ == '__main__':
    sys.exit(main())

"""python -m oxygen_ros.demo: the whole node at work, for DEMO_SECONDS (default 15).

DEMO_SOURCE=world (the default): a simulated robot whose arm moves by the node's actions, served
by the small trained model. DEMO_SOURCE=bag: a recording, played to random weights; both are made
once (build/demo). Node, robot or player, and view are processes of their own on a ROS domain of
their own. The last line is `DEMO {json}`. Exit status 0 only if chunks and finished answers came,
every process ended cleanly and, in a world that ran for 10 s, an instruction was carried out and
an answer was true; 2 when something given cannot be used.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from oxygen_ros.demo.prepare import prepare_bag, prepare_world
from oxygen_ros.demo.processes import Processes, ros_environment
from oxygen_ros.types import OxygenError

FOLDER = Path('build/demo')
STOP_TIMEOUT_S = 10.0
SOURCES = {'world': prepare_world, 'bag': prepare_bag}
WORLD_SEED = 1
PROVEN_S = 10.0  # in which even a busy machine carries an instruction out: they take 1 to 3 s
PROVEN_ANSWERS = 5  # of which one must be true, however short the run


def main() -> int:
    """Run the demo; returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        seconds = _seconds(os.environ.get('DEMO_SECONDS', '15'))
        return _demo(_source(os.environ.get('DEMO_SOURCE', 'world')), seconds)
    except OxygenError as error:
        print(f'demo: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('demo: interrupted', file=sys.stderr)
        return 130


def _demo(source: str, seconds: float) -> int:
    files = SOURCES[source](FOLDER)
    numbers = FOLDER / 'numbers.json'
    numbers.unlink(missing_ok=True)
    with Processes(FOLDER, ros_environment()) as processes:
        if files.recording is None:
            name, command = 'robot', ['oxygen_ros.tabletop.robot', '--seed', str(WORLD_SEED)]
        else:
            name, command = 'player', ['oxygen_ros.demo.player', str(files.recording)]
        print(f'starting the node, the {name} and the view')
        processes.start(
            'node', 'oxygen_ros.ros.node', '--ros-args', '--params-file', str(files.params)
        )
        processes.start(name, *command)
        view = ['--source', source, '--seconds', str(seconds), '--json', str(numbers)]
        processes.start('view', 'oxygen_ros.demo.view', *view, log=False)
        problems = processes.wait_for('view')
        problems += processes.stop(STOP_TIMEOUT_S)
    summary = json.loads(numbers.read_text()) if numbers.exists() else {}
    if summary and source == 'world':
        problems += unproven(summary)
    for problem in problems:
        print(f'demo: {problem}', file=sys.stderr)
    _say(summary)
    print(f'DEMO {json.dumps(summary)}', flush=True)
    return 1 if problems or not summary else 0


def unproven(summary: dict[str, Any]) -> list[str]:
    """What a run of the world should have shown by its end, and did not."""
    seconds = summary['seconds']
    done, right, said = (summary.get(key, 0) for key in ('successes', 'answers_right', 'answers'))
    found = []
    if seconds >= PROVEN_S and not done:
        found.append(f'no instruction was carried out in {seconds:g} s')
    if not right and (said >= PROVEN_ANSWERS or seconds >= PROVEN_S):
        found.append(f'none of {said} answers was true')
    return found


def _say(summary: dict[str, Any]) -> None:
    if not summary:
        return
    print(
        '\n{seconds} s: {chunks} frames answered with {frames_per_s}/s, '
        '{actions_per_s} actions/s, action stream {action_stream_hz} Hz\n'
        'camera to chunk {camera_to_chunk_ms_p50} ms (p50), {camera_to_chunk_ms_p99} ms (p99)\n'
        '{tokens} tokens, {tok_per_s}/s, {requests_done} answers finished, up to {rows_max} '
        'decoded together'.format(**summary)
    )
    if 'episodes' in summary:
        print(
            '{successes} of {episodes} instructions carried out, {answers_right} of {answers} '
            'answers true'.format(**summary)
        )
    print()


def _source(text: str) -> str:
    if text not in SOURCES:
        raise OxygenError(f'DEMO_SOURCE is {text!r}: must be one of {", ".join(SOURCES)}')
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float('nan')
    if not 1.0 <= seconds <= 86_400.0:
        raise OxygenError(f'DEMO_SECONDS is {text!r}: must be a number from 1 to 86400')
    return seconds


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == '__main__':
    sys.exit(main())

"""Wear the node: frames, requests, cancels, camera drop-outs and malformed messages, all counted.

python tools/soak.py [--frames 10000] [--requests 1000] [--seed 0] [--json out.json]

The node is a process of its own (tiny model with random weights); this one is the robot and its
user, over DDS with reliable publishers. A frame is sent when the one before is answered, or has
had the time for it, so that nothing is overwritten in a queue. Counted from when the node hears
every topic: what is sent while DDS is still connecting is lost. At the end must hold:

images      sent = used in observations + dropped by a reason + held
joints      sent = taken + dropped by a reason
frames      taken by the engine = chunks heard, each once + chunks and frames dropped
requests    every one sent has ended exactly once, with a reason
flat        memory, file descriptors and threads over the second half; no KV row in use

Exit status 0 if all of it holds, 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import node_setting
import rclpy
from rclpy.executors import SingleThreadedExecutor
from soak_robot import Robot

from oxygen_ros.demo.processes import Processes
from oxygen_ros.ros import process

START_TIMEOUT_S = 90.0
END_TIMEOUT_S = 60.0
GROWTH_MB = 8.0  # an allocator's noise; a leak of 1 KB a frame is more from 8,000 frames on
# Drops of other things than images, in ~/status.
OF_JOINTS = ('bad_joint_state', 'missing_joints', 'repeated_joint_state')
OF_FRAMES = (
    'frame_failed',
    'chunk_not_finite',
    'chunk_out_of_limits',
    'chunk_inactive',
    'chunk_stopped',
    'chunk_outdated',
)
NOT_OF_IMAGES = (
    *OF_JOINTS,
    *OF_FRAMES,
    'chunk_late',  # it is published all the same
    'frame_replaced',
    'frame_refused',
    'empty_instruction',
    'long_instruction',
    'request_refused',
    'cancel_overflow',
)


def main() -> int:
    """Run, print, write the JSON; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--frames', type=int, default=10_000)
    parser.add_argument('--requests', type=int, default=1_000)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--json', type=Path, help='where the numbers go')
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = soak(given.frames, given.requests, given.seed, Path(folder))
    text = json.dumps(report, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + '\n')
    return 0 if not report['faults'] else 1


def soak(frames: int, requests: int, seed: int, folder: Path) -> dict[str, Any]:
    """Run node and robot; the report, in which `faults` says what did not hold."""
    params = node_setting.write_setting(
        folder, status_period_s=0.05, max_rows=4, max_queue=8, max_prompt_tokens=32
    )
    variables = node_setting.environment()
    os.environ.update(variables)
    process.init_rclpy([])
    began = time.monotonic()
    try:
        with Processes(folder, variables) as processes:
            arguments = ('--ros-args', '--params-file', str(params))
            pid = processes.start('node', 'oxygen_ros.ros.node', *arguments)
            robot = Robot(SingleThreadedExecutor(), seed)
            if not robot.wait_until_heard(START_TIMEOUT_S):
                raise SystemExit((folder / 'node.log').read_text(errors='replace')[-3000:])
            before = _books(robot)
            sizes = _run(robot, pid, frames, requests, random.Random(seed))
            ended = robot.wait(lambda: not robot.open_requests(), END_TIMEOUT_S)
            robot.wait_until_settled()
            faults = [] if ended else [f'requests never ended: {robot.open_requests()[:5]}']
            faults += _unaccounted(robot, before) + _grown(sizes, robot)
            faults += processes.stop(10.0)
        log = (folder / 'node.log').read_text(errors='replace')
    finally:
        rclpy.try_shutdown()
    faults += ['traceback in the log'] if 'Traceback' in log else []
    return {
        'faults': faults,
        'frames': frames,
        'requests': requests,
        'seed': seed,
        'seconds': round(time.monotonic() - began, 1),
        'sent': dict(robot.sent),
        'mischief': dict(robot.mischief),
        'ended': dict(Counter(reason for reasons in robot.ended.values() for reason in reasons)),
        'node': robot.diagnostics['drops'],
        'sizes': sizes,
        'machine': node_setting.machine(),
    }


def _run(
    robot: Robot, pid: int, frames: int, requests: int, dice: random.Random
) -> dict[str, dict[str, float]]:
    """Send it all; footprints of the node at the tenth, the half and the end."""
    sizes: dict[str, dict[str, float]] = {}
    marks = {frames // 10: 'tenth', frames // 2: 'half'}
    asked = 0
    for number in range(frames):
        while asked < requests * (number + 1) // frames:
            robot.ask()
            asked += 1
            if dice.random() < 0.2:
                robot.cancel()
        if dice.random() < 0.01:
            robot.mutter()
        robot.frame()
        if number in marks:
            sizes[marks[number]] = _footprint(pid)
    robot.cancel_all()
    for _ in range(3):  # a request is only answered about a frame
        robot.frame()
    robot.wait_for_report()
    sizes['end'] = _footprint(pid)
    return sizes


def _books(robot: Robot) -> Counter[str]:
    """What the node has counted so far: images, joints and frames it can account for."""
    status = robot.status
    assert status is not None, 'served without a status'
    drops = {pair.key: int(pair.value) for pair in status.dropped}
    shown = robot.diagnostics['drops']
    books = Counter(
        images=sum(n for reason, n in drops.items() if reason not in NOT_OF_IMAGES),
        joints=sum(drops.get(reason, 0) for reason in OF_JOINTS),
        frames=status.frames - sum(drops.get(reason, 0) for reason in OF_FRAMES),
    )
    books['images'] += int(shown['images used']) + int(shown['images held'])
    books['joints'] += int(robot.diagnostics['joint state']['messages'])
    return books


def _unaccounted(robot: Robot, before: Counter[str]) -> list[str]:
    """What does not add up, one sentence each."""
    books = _books(robot)
    counted = {what: books[what] - before[what] for what in books}
    sent = {**robot.sent, 'frames': len(robot.chunks)}
    faults = [
        f'{what}: {sent[what]} sent or heard, {counted[what]} accounted for by the node'
        for what in counted
        if sent[what] != counted[what]
    ]
    if (heard := sum(robot.chunks.values())) != len(robot.chunks):
        faults.append(f'{heard} chunks heard for {len(robot.chunks)} frames')
    nameless = len(robot.ended.get('', []))
    if nameless != robot.sent['requests without an id']:
        faults.append(
            f'{robot.sent["requests without an id"]} requests without an id, {nameless} refused'
        )
    twice = [name for name, reasons in robot.ended.items() if name and len(reasons) > 1]
    return faults + ([f'requests that ended more than once: {twice[:5]}'] if twice else [])


def _grown(sizes: dict[str, dict[str, float]], robot: Robot) -> list[str]:
    status = robot.status
    assert status is not None, 'served without a status'
    half, end = sizes['half'], sizes['end']
    faults = []
    if end['memory_mb'] > half['memory_mb'] + GROWTH_MB:
        faults.append(f'memory grew from {half["memory_mb"]} to {end["memory_mb"]} MB')
    for what in ('descriptors', 'threads'):
        if end[what] > half[what]:
            faults.append(f'{what} grew from {half[what]:g} to {end[what]:g}')
    if status.rows or status.queued:
        faults.append(f'{status.rows} rows in use and {status.queued} queued at the end')
    return faults


def _footprint(pid: int) -> dict[str, float]:
    """Resident memory in MB, open file descriptors and threads of a process."""
    fields = dict(
        line.split(':', 1) for line in Path(f'/proc/{pid}/status').read_text().splitlines()
    )
    return {
        'memory_mb': round(int(fields['VmRSS'].split()[0]) / 1024, 1),
        'descriptors': len(os.listdir(f'/proc/{pid}/fd')),
        'threads': int(fields['Threads']),
    }


if __name__ == '__main__':
    sys.exit(main())

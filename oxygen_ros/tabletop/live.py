"""The closed loop through the real node: node and robot as processes that talk over DDS."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from oxygen_ros.demo.prepare import node_parameters
from oxygen_ros.demo.processes import Processes, ros_environment
from oxygen_ros.ros.contract import contract_path
from oxygen_ros.tabletop import ROBOT
from oxygen_ros.tabletop.render import CAMERAS
from oxygen_ros.types import OxygenError

STOP_TIMEOUT_S = 10.0


def evaluate_node(
    checkpoint: Path,
    episodes: int,
    seed: int,
    mode: str = 'continuous',
    cameras: Sequence[str] = CAMERAS,
    into: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Episodes in real time at 70 Hz, with language requests running; their score.

    into: where the score goes as well, also that of the episodes until something went wrong.
    Raises OxygenError.
    """
    scores = {} if into is None else into
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        robot, result = _write_contract(folder / 'robot.yaml', cameras), folder / 'score.json'
        params = folder / 'params.yaml'
        parameters = {**node_parameters(checkpoint, str(robot)), 'mode': mode}
        params.write_text(yaml.safe_dump({'/**': {'ros__parameters': parameters}}))
        with _read_at_the_end(result, scores), Processes(folder, ros_environment()) as processes:
            processes.start(
                'node', 'oxygen_ros.ros.node', '--ros-args', '--params-file', str(params)
            )
            processes.start(
                'robot',
                'oxygen_ros.tabletop.robot',
                *('--episodes', str(episodes), '--seed', str(seed)),
                *('--robot', str(robot), '--json', str(result)),
            )
            problems = processes.wait_for('robot')
            problems += processes.stop(STOP_TIMEOUT_S)
        if problems or not scores:
            raise OxygenError(f'the run through the node failed: {"; ".join(problems)}')
        return scores


@contextmanager
def _read_at_the_end(file: Path, scores: dict[str, Any]) -> Iterator[None]:
    """Whatever ends the processes: the robot writes its score when it is stopped."""
    try:
        yield
    finally:
        if file.exists():
            scores.update(json.loads(file.read_text(encoding='utf-8')))


def _write_contract(path: Path, cameras: Sequence[str]) -> Path:
    """The robot's contract with some of its cameras; of these alone one must be required."""
    tree = yaml.safe_load(contract_path(ROBOT).read_text(encoding='utf-8'))
    kept = {slot: tree['cameras'][slot] for slot in cameras}
    if not any(camera.get('required', True) for camera in kept.values()):
        kept = {slot: {**camera, 'required': True} for slot, camera in kept.items()}
    path.write_text(yaml.safe_dump({**tree, 'cameras': kept}), encoding='utf-8')
    return path

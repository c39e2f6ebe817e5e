"""The closed loop through the real node: node and robot as processes that talk over DDS."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml

from oxygen_ros.demo.prepare import node_parameters
from oxygen_ros.demo.processes import Processes, ros_environment
from oxygen_ros.types import OxygenError

STOP_TIMEOUT_S = 10.0


def evaluate_node(checkpoint: Path, episodes: int, seed: int) -> dict[str, Any]:
    """Episodes in real time at 70 Hz, with language requests running. Raises OxygenError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        params, result = folder / 'params.yaml', folder / 'score.json'
        params.write_text(
            yaml.safe_dump({'/**': {'ros__parameters': node_parameters(checkpoint)}})
        )
        with Processes(folder, ros_environment()) as processes:
            processes.start(
                'node', 'oxygen_ros.ros.node', '--ros-args', '--params-file', str(params)
            )
            processes.start(
                'robot',
                'oxygen_ros.tabletop.robot',
                *('--episodes', str(episodes), '--seed', str(seed), '--json', str(result)),
            )
            problems = processes.wait_for('robot')
            problems += processes.stop(STOP_TIMEOUT_S)
        if problems or not result.exists():
            raise OxygenError(f'the run through the node failed: {"; ".join(problems)}')
        return dict(json.loads(result.read_text(encoding='utf-8')))

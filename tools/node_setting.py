"""What the measuring tools share: a checkpoint, a contract, a node process, and its machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from oxygen_ros.checkpoint.random_pi05 import CAMERAS, write_random_checkpoint
from oxygen_ros.demo.processes import ros_environment

JOINTS = tuple(f'joint_{number}' for number in range(7))
TOPICS = tuple(f'cameras/{slot}/image_raw' for slot in CAMERAS)
RATE_HZ = 70.0


def write_setting(folder: Path, **parameters: object) -> Path:
    """A tiny random checkpoint, a contract of three raw cameras; returns the parameter file."""
    checkpoint = folder / 'checkpoint'
    write_random_checkpoint(checkpoint, 'tiny', state_dim=len(JOINTS), action_dim=len(JOINTS))
    robot = folder / 'robot.yaml'
    robot.write_text(yaml.safe_dump(_contract(TOPICS), sort_keys=False))
    values: dict[str, object] = {
        'checkpoint': str(checkpoint),
        'robot': str(robot),
        'autostart': True,
        'action_rate_hz': RATE_HZ,
        'cpu_threads': 1,
        'status_period_s': 0.5,
        'default_instruction': 'put the red block on the tray',
        **parameters,
    }
    params = folder / 'params.yaml'
    params.write_text(yaml.safe_dump({'/**': {'ros__parameters': values}}))
    return params


def environment() -> dict[str, str]:
    """For the children: a ROS domain of its own, shared memory, and this folder's modules."""
    variables = ros_environment()
    paths = [str(Path(__file__).resolve().parent), os.environ.get('PYTHONPATH', '')]
    variables['PYTHONPATH'] = os.pathsep.join(path for path in paths if path)
    return variables


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and how busy it was."""
    return {
        'cpu': _cpu_name(),
        'cores': os.cpu_count(),
        'load_average': [round(value, 2) for value in os.getloadavg()],
        'system': f'{platform.system()} {platform.release()}',
        'python': platform.python_version(),
    }


def _contract(topics: Sequence[str]) -> dict[str, Any]:
    joints = [{'name': name} for name in JOINTS]
    return {
        'robot': 'measured',
        'cameras': {
            slot: {'topic': topic, 'type': 'image', 'required': True}
            for slot, topic in zip(CAMERAS, topics, strict=True)
        },
        'state': {'topic': 'joint_states', 'joints': joints},
        'actions': {
            'joints': joints,
            'step_period_s': 0.05,
            'valid_for_s': 0.5,
            'when_expired': 'hold',
        },
        'instruction': {'topic': 'instruction', 'default': ''},
    }


def _cpu_name() -> str:
    for line in Path('/proc/cpuinfo').read_text().splitlines():
        if line.startswith('model name'):
            return line.split(':', 1)[1].strip()
    return platform.machine()

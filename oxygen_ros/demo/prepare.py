"""Makes what the demo needs, once: parameters, and for a bag random weights and a recording."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import oxygen_ros
from oxygen_ros.ros.contract import load_contract
from oxygen_ros.tabletop import ROBOT, SHIPPED
from oxygen_ros.types import OxygenError

BAG_ROBOT = 'demo'
RECORDING_S = 10.0
# What the made files depend on; a change makes them anew.
SOURCES = (
    'checkpoint/random_pi05.py',
    'checkpoint/random_files.py',
    'checkpoint/random_weights.py',
    'checkpoint/random_tokenizer.py',
    'checkpoint/arch.py',
    'demo/recording.py',
    'demo/scene.py',
    'demo/prepare.py',
)


@dataclass(frozen=True)
class Files:
    """What the demo's processes are given. recording: None for the simulated world."""

    params: Path
    recording: Path | None = None


def prepare_world(folder: Path) -> Files:
    """Of the trained model and the simulated robot: only parameters are written."""
    folder.mkdir(parents=True, exist_ok=True)
    return Files(_write_parameters(folder / 'params.yaml', node_parameters(SHIPPED)))


def prepare_bag(folder: Path) -> Files:
    """Of a recording played to random weights, made if not there. Raises OxygenError."""
    key = _key()
    checkpoint, recording = folder / f'checkpoint-{key}', folder / f'recording-{key}'
    folder.mkdir(parents=True, exist_ok=True)
    contract = load_contract(BAG_ROBOT)
    _make(
        checkpoint,
        'a tiny checkpoint with random weights',
        'oxygen_ros.checkpoint.random_pi05',
        '--size',
        'tiny',
        '--state-dim',
        str(len(contract.state.joints)),
        '--action-dim',
        str(len(contract.actions.joints)),
    )
    _make(
        recording,
        f'a recording of {RECORDING_S:.0f} s',
        'oxygen_ros.demo.recording',
        '--seconds',
        str(RECORDING_S),
    )
    parameters = node_parameters(checkpoint, BAG_ROBOT)
    return Files(_write_parameters(folder / 'params.yaml', parameters), recording)


def node_parameters(checkpoint: Path, robot: str = ROBOT) -> dict[str, Any]:
    """Of a node that serves a small checkpoint on a few cores and starts by itself."""
    return {
        'checkpoint': str(checkpoint.resolve()),
        'robot': robot,
        'autostart': True,
        'status_period_s': 0.2,
        'cpu_threads': 1,
    }


def _write_parameters(path: Path, parameters: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({'/**': {'ros__parameters': parameters}}))
    return path


def _make(target: Path, what: str, module: str, *arguments: str) -> None:
    """Run a module that writes a folder; a half-written one never gets the final name."""
    if target.exists():
        return
    for outdated in target.parent.glob(target.name.rsplit('-', 1)[0] + '-*'):
        shutil.rmtree(outdated)
    print(f'making {what} in {target}', flush=True)
    half = target.with_name(target.name + '.part')
    shutil.rmtree(half, ignore_errors=True)
    done = subprocess.run([sys.executable, '-m', module, str(half), *arguments], check=False)
    if done.returncode:
        raise OxygenError(f'{module} ended with status {done.returncode}: {target} was not made')
    half.rename(target)


def _key() -> str:
    package = Path(oxygen_ros.__file__).parent
    digest = hashlib.sha256()
    for source in SOURCES:
        digest.update((package / source).read_bytes())
    return digest.hexdigest()[:8]

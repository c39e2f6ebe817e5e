"""Makes what the demo needs, once: a checkpoint with random weights, a recording, parameters."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

import oxygen_ros
from oxygen_ros.ros.contract import load_contract
from oxygen_ros.types import OxygenError

ROBOT = 'demo'
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
    """Where the demo's files are."""

    checkpoint: Path
    recording: Path
    params: Path


def prepare(folder: Path) -> Files:
    """The files, made if they are not there. Raises OxygenError."""
    key = _key()
    files = Files(
        folder / f'checkpoint-{key}', folder / f'recording-{key}', folder / 'params.yaml'
    )
    folder.mkdir(parents=True, exist_ok=True)
    contract = load_contract(ROBOT)
    _make(
        files.checkpoint,
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
        files.recording,
        f'a recording of {RECORDING_S:.0f} s',
        'oxygen_ros.demo.recording',
        '--seconds',
        str(RECORDING_S),
    )
    parameters = {
        'checkpoint': str(files.checkpoint.resolve()),
        'robot': ROBOT,
        'autostart': True,
        'status_period_s': 0.2,
        'cpu_threads': 1,
    }
    files.params.write_text(yaml.safe_dump({'/**': {'ros__parameters': parameters}}))
    return files


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

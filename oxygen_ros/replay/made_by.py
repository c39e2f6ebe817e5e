"""Which program and which checkpoint made a report, so that two of them can be told apart.

Nothing of the time and nothing of the machine: two runs of one setting say the same.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from tqdm import tqdm

import oxygen_ros
from oxygen_ros.checkpoint import inspect_checkpoint

LIBRARIES = ('torch', 'transformers', 'numpy')
BLOCK = 1 << 22  # bytes
# What describes a checkpoint beside its weights: sizes, statistics, tokenizer.
DESCRIPTION_BYTES = 1 << 26  # at most
DESCRIPTIONS = ('.json', '.yaml', '.txt', '.model', '.jinja', '.safetensors')


def versions() -> dict[str, str]:
    """Of the package, its code and what computes. code_sha256: a tree that was changed shows."""
    found = {'oxygen_ros': _version('oxygen_ros'), 'code_sha256': _code_sha256()}
    found |= {name: _version(name) for name in LIBRARIES}
    return {**found, 'python': platform.python_version()}


def checkpoint_digests(path: str, robot_tag: str, hidden: bool | None) -> dict[str, Any]:
    """SHA-256 of all weights and of all descriptions; every byte is read, 1 to 2 GB a second.

    hidden: no progress bar; None for none where stderr is no terminal.
    """
    info = inspect_checkpoint(Path(path).expanduser(), robot_tag)
    weights = list(info.weight_files)
    others = {file.resolve(): file for folder in (info.path, info.tokenizer_dir)
              for file in sorted(folder.rglob('*')) if _describes(file)}  # fmt: skip
    for file in weights:
        others.pop(file.resolve(), None)
    total = sum(file.stat().st_size for file in weights)
    with tqdm(
        total=total, unit='B', unit_scale=True, desc='digest', leave=False, disable=hidden
    ) as bar:
        return {
            'weights_sha256': _sha256(weights, bar),
            'descriptions_sha256': _sha256(others.values(), None),
        }


def _describes(file: Path) -> bool:
    """Not the weights of another step, which may lie in the folder too."""
    return (
        file.suffix in DESCRIPTIONS and file.is_file() and file.stat().st_size <= DESCRIPTION_BYTES
    )


def _sha256(files: Iterable[Path], bar: Any) -> str:
    """Of names and bytes; where the folder lies does not count."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f'{file.name}\0{file.stat().st_size}\0'.encode())
        with file.open('rb') as opened:
            while block := opened.read(BLOCK):
                digest.update(block)
                if bar is not None:
                    bar.update(len(block))
    return digest.hexdigest()


def _code_sha256() -> str:
    package = Path(oxygen_ros.__file__).parent
    digest = hashlib.sha256()
    generated = package / 'msg'  # beside the modules in an installation alone
    for file in sorted(set(package.rglob('*.py')) - set(generated.rglob('*.py'))):
        digest.update(f'{file.relative_to(package)}\0'.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return 'unknown'

"""Tensors on disk: which files hold them, under which names, read from headers alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oxygen_ros.checkpoint.files import open_tensors, read_json
from oxygen_ros.types import OxygenError

SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
FLOATS = {'F64': 'float64', 'F32': 'float32', 'F16': 'float16', 'BF16': 'bfloat16'}


@dataclass(frozen=True)
class Naming:
    """How one family's stored tensors are called in its model.

    renames: every rule is tried in this order. extras: stored names that the model does not read,
    each with its reason. tied: name <-> name of one matrix, either of which may be missing.
    """

    renames: tuple[tuple[re.Pattern[str], str], ...] = ()
    extras: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)

    def canonical(self, key: str) -> str | None:
        """The name the model knows a stored tensor by; None for a known extra."""
        for pattern, replacement in self.renames:
            key = pattern.sub(replacement, key)
        return None if any(extra.match(key) for extra in self.extras.values()) else key


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies. dtype: as safetensors names it, e.g. BF16."""

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: str


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a checkpoint folder, one or many, as their index has them.

    An index and its files must name the same tensors. Raises OxygenError.
    """
    path = folder / INDEX
    single = (folder / SINGLE).is_file()
    if not path.is_file():
        if not single:
            raise OxygenError(f'{folder}: no weights, neither {SINGLE} nor {INDEX} is there')
        return (folder / SINGLE,)
    weight_map = _weight_map(path)
    names = sorted(set(weight_map.values()))
    if single and names != [SINGLE]:
        raise OxygenError(
            f'{folder}: holds {SINGLE}, and {INDEX} with {", ".join(names)}: remove what is not '
            'meant'
        )
    files = tuple(folder / name for name in names)
    _check_index(path, weight_map, files)
    return files


def _weight_map(path: Path) -> dict[str, str]:
    """Stored name -> name of its file."""
    weight_map = read_json(path).get('weight_map')
    if not isinstance(weight_map, dict) or not weight_map:
        raise OxygenError(f'{path}: has no weight_map')
    for key, name in weight_map.items():
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise OxygenError(f'{path}: {key} is in {name!r}, the name of a file is expected')
    return weight_map


def _check_index(path: Path, weight_map: Mapping[str, str], files: Sequence[Path]) -> None:
    stored = {(key, file.name) for file in files for key in _stored_keys(file)}
    named = set(weight_map.items())
    problems = [f'{file} lacks {key}' for key, file in sorted(named - stored)]
    problems += [
        f'{file} holds {key}, which the index '
        + (f'has in {weight_map[key]}' if key in weight_map else 'does not name')
        for key, file in sorted(stored - named)
    ]
    if problems:
        raise OxygenError(
            f'{path}: is not the index of these files, {len(problems)} tensors differ: '
            f'{"; ".join(problems)}; copy the complete checkpoint'
        )


def _stored_keys(file: Path) -> list[str]:
    """Names of a file's tensors, as they are stored. Raises OxygenError."""
    with open_tensors(file, 'numpy') as handle:
        return list(handle.offset_keys())


def read_index(files: Sequence[Path], naming: Naming) -> dict[str, StoredTensor]:
    """Canonical name -> where it is stored, known extras left out. Raises OxygenError."""
    index: dict[str, StoredTensor] = {}
    for file in files:
        for name, stored in _headers(file, naming):
            if name in index:
                first = index[name]
                raise OxygenError(
                    f'{file}: {stored.key} is stored twice, also as {first.key} in {first.file}'
                )
            index[name] = stored
    return index


def _headers(file: Path, naming: Naming) -> Iterator[tuple[str, StoredTensor]]:
    with open_tensors(file, 'numpy') as handle:
        for key in handle.offset_keys():
            name = naming.canonical(key)
            if name is None:
                continue
            part = handle.get_slice(key)
            if part.get_dtype() not in FLOATS:
                raise OxygenError(
                    f'{file}: {key} is stored as {part.get_dtype()}, allowed: {", ".join(FLOATS)}'
                )
            yield name, StoredTensor(file, key, tuple(part.get_shape()), part.get_dtype())

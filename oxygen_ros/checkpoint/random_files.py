"""Writing checkpoints with random weights, whatever their family."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from oxygen_ros.checkpoint.weights import INDEX, SINGLE
from oxygen_ros.types import OxygenError

SHARD_VALUES = 512 * 2**20  # a shard of at most 1 GB in bf16, so that no more is in memory


def new_folder(path: str | Path) -> Path:
    """An empty folder, made if need be. Raises OxygenError if it holds files."""
    folder = Path(path)
    if folder.exists() and any(folder.iterdir()):
        raise OxygenError(f'{folder}: holds files already; give a new or an empty folder')
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_json(path: Path, value: Any) -> None:
    """Write a small file."""
    path.write_text(json.dumps(value, indent=2) + '\n', encoding='utf-8')


def write_weights(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensor: Callable[[str, tuple[int, ...]], torch.Tensor],
    shard_values: int = SHARD_VALUES,
    prefix: str = '',
) -> None:
    """One file, or shards with an index, of which one at a time is in memory.

    tensor: makes the value of a name and shape. prefix: of the stored names.
    """
    shards = _shards(shapes, shard_values)
    count = len(shards)
    names = [f'model-{i:05d}-of-{count:05d}.safetensors' for i in range(1, count + 1)]
    if count == 1:
        names = [SINGLE]
    weight_map = {}
    for name, shard in zip(names, shards, strict=True):
        tensors = {prefix + key: tensor(key, shape) for key, shape in shard.items()}
        save_file(tensors, folder / name)
        weight_map.update(dict.fromkeys(tensors, name))
    if count > 1:
        write_json(folder / INDEX, {'metadata': {}, 'weight_map': weight_map})


def _shards(shapes: Mapping[str, tuple[int, ...]], limit: int) -> list[dict[str, tuple[int, ...]]]:
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    values = 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        if values and values + count > limit:
            shards.append({})
            values = 0
        shards[-1][name] = shape
        values += count
    return shards

"""Checkpoints' weights as a test loads, damages and splits them."""

import json

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from oxygen_ros.checkpoint import (
    check_tensors,
    inspect_checkpoint,
    iter_tensors,
    load_into,
    tensor_shapes,
)

K_PROJ = 'paligemma_with_expert.paligemma.model.language_model.layers.1.self_attn.k_proj.weight'


def loaded(folder, dtype=torch.float32, progress=None):
    """Name -> parameter after strict loading; starts as NaN to show what is not filled."""
    info = inspect_checkpoint(folder)
    shapes = tensor_shapes(info.arch)
    check_tensors(info, shapes)
    params = {name: torch.full(shape, torch.nan, dtype=dtype) for name, shape in shapes.items()}
    load_into(params, iter_tensors(info), progress, str(folder))
    return params


def rewrite(folder, function):
    """Replace the tensors of a checkpoint by function(tensors); keeps the file's metadata."""
    path = folder / 'model.safetensors'
    with safe_open(path, 'pt') as handle:
        metadata = handle.metadata()
    tensors = load_file(path)
    save_file(function(tensors), path, metadata)
    return folder


def shard(folder, parts=3):
    """Split model.safetensors into parts with an index, and return the parts' names."""
    path = folder / 'model.safetensors'
    tensors = load_file(path)
    path.unlink()
    names = [f'model-{i + 1:05d}-of-{parts:05d}.safetensors' for i in range(parts)]
    weight_map = {key: names[i % parts] for i, key in enumerate(sorted(tensors))}
    for name in names:
        part = {key: tensors[key] for key in tensors if weight_map[key] == name}
        save_file(part, folder / name)
    index = {'metadata': {}, 'weight_map': weight_map}
    (folder / 'model.safetensors.index.json').write_text(json.dumps(index))
    return names

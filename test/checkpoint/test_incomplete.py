"""Weights that are not whole: what no tensor's absence tells, the index or known sizes do."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored import K_PROJ, loaded, rewrite, shard

from oxygen_ros.checkpoint import inspect_checkpoint, tensor_shapes
from oxygen_ros.checkpoint.arch import Pi05Arch, arch_from_shapes
from oxygen_ros.checkpoint.random_pi05 import SIZES
from oxygen_ros.types import OxygenError


@pytest.mark.parametrize('wrong', [3, None, '', '../model.safetensors', ['a']])
def test_an_index_that_names_no_file(copy_of, edit, wrong):
    folder = copy_of('pi05_lerobot')
    shard(folder)
    index = folder / 'model.safetensors.index.json'
    edit(index, lambda c: c['weight_map'].update({f'model.{K_PROJ}': wrong}))
    with pytest.raises(OxygenError, match=f'index.json: model.{K_PROJ} is in .*name of a file'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('layers', ['encoder.layers.1.', 'model.layers.2.', K_PROJ])
def test_what_only_the_index_knows_to_be_missing(copy_of, layers):
    """Sizes are read off the tensors, so a network without its last layers has one layer less."""
    folder = copy_of('pi05_lerobot')
    (folder / 'oxygen.json').write_text(
        '{"architecture": {"vision_heads": 4}, "constant_dimensions": {"state": [7]}}'
    )
    for name in shard(folder):
        kept = {k: x for k, x in load_file(folder / name).items() if layers not in k}
        save_file(kept, folder / name)
    with pytest.raises(OxygenError, match=f'index.json: .* lacks model.[^;]*{layers}'):
        inspect_checkpoint(folder)


def test_what_the_index_does_not_name(copy_of, edit):
    folder = copy_of('pi05_lerobot')
    names = shard(folder)
    index = folder / 'model.safetensors.index.json'
    edit(index, lambda c: c['weight_map'].pop(f'model.{K_PROJ}'))
    with pytest.raises(OxygenError, match=f'holds model.{K_PROJ}, which the index does not name'):
        inspect_checkpoint(folder)
    edit(index, lambda c: c['weight_map'].update(dict.fromkeys(c['weight_map'], names[0])))
    with pytest.raises(OxygenError, match=f'{names[0]} lacks model'):
        inspect_checkpoint(folder)


def test_one_file_beside_an_index_of_others(copy_of):
    folder = copy_of('pi05_lerobot')
    whole = (folder / 'model.safetensors').read_bytes()
    names = shard(folder)
    (folder / 'model.safetensors').write_bytes(whole)
    with pytest.raises(OxygenError, match=f'holds model.safetensors, and .*{names[0]}'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize(
    ('dropped', 'said'),
    [
        ('encoder.layers.1.', 'vision_layers is stated as 2, but the tensors have 1'),
        ('language_model.layers.2.', 'language model has 2 layers and the expert 3'),
        ('gemma_expert.model.layers.2.', 'language model has 3 layers and the expert 2'),
        ('model.layers.2.', 'depth is stated as 3, but the tensors have 2'),
        ('language_model.layers.1.', 'has layers 2 of .*language_model.layers. without 1'),
    ],
)
def test_a_network_without_whole_layers(copy_of, dropped, said):
    folder = rewrite(
        copy_of('pi05_lerobot'), lambda t: {k: x for k, x in t.items() if dropped not in k}
    )
    with pytest.raises(OxygenError, match=said):
        inspect_checkpoint(folder)


FULL = Pi05Arch(**SIZES['full'], horizon=50)
HEADS = {'heads': 8, 'kv_heads': 1, 'vision_heads': 16, 'horizon': 50}


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ({'vision_layers': 26}, 'SigLIP so400m, but the tensors have vision_layers 26 instead'),
        ({'depth': 17}, 'that of gemma_2b, but the tensors have depth 17 instead of 18'),
        ({'expert_mlp': 2048}, 'gemma_300m, but the tensors have expert_mlp 2048 instead'),
        ({'head_dim': 128}, 'gemma_2b, but the tensors have head_dim 128 instead of 256'),
    ],
)
def test_networks_of_the_makers_variants_have_their_sizes(change, said):
    """So the last layers of a real checkpoint cannot be missing unseen, index or not."""
    assert arch_from_shapes(tensor_shapes(FULL), HEADS, 'here') == FULL
    other = dataclasses.replace(FULL, **change)
    with pytest.raises(OxygenError, match=said):
        arch_from_shapes(tensor_shapes(other), HEADS, 'here')
    stated = {**HEADS, **change}
    if 'head_dim' not in change:
        assert arch_from_shapes(tensor_shapes(other), stated, 'here') == other


@pytest.mark.parametrize('wrong', [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_weights_that_are_no_numbers_are_named(copy_of, wrong, dtype):
    def damage(tensors):
        changed = tensors[f'model.{K_PROJ}'].clone()
        changed[3, 5] = wrong
        return {**tensors, f'model.{K_PROJ}': changed}

    folder = rewrite(copy_of('pi05_lerobot'), damage)
    said = f'{K_PROJ} has values that are not finite numbers'
    with pytest.raises(OxygenError, match=said):
        loaded(folder, dtype)

"""Weights: every tensor of the model filled, every tensor of the file used, or a refusal."""

import dataclasses
import json

import pytest
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
from oxygen_ros.checkpoint.arch import EMBED, LM_HEAD, Pi05Arch, arch_from_shapes
from oxygen_ros.checkpoint.random_pi05 import SIZES
from oxygen_ros.types import OxygenError

EXPERT_HEAD = 'paligemma_with_expert.gemma_expert.lm_head.weight'
EMBEDDING = 'paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight'
HEAD = 'paligemma_with_expert.paligemma.lm_head.weight'
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


def without_prefix(tensors):
    return {name.removeprefix('model.'): tensor for name, tensor in tensors.items()}


def without(tensors, name):
    return {key: tensor for key, tensor in tensors.items() if key != f'model.{name}'}


def equal(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_names_are_the_ones_in_use():
    assert (EMBED, LM_HEAD) == (EMBEDDING, HEAD)


def test_both_layouts_give_the_same_tensors_bit_for_bit(copy_of):
    """One stores keys with `model.` and both matrices, the other neither."""
    lerobot, openpi = (loaded(copy_of(case)) for case in ('pi05_lerobot', 'pi05_openpi_format'))
    assert equal(lerobot, openpi)
    assert all(torch.isfinite(tensor).all() for tensor in lerobot.values())


def test_every_stored_tensor_is_used_or_a_known_extra(copy_of):
    folder = copy_of('pi05_lerobot')
    stored = without_prefix(load_file(folder / 'model.safetensors'))
    yielded = dict(iter_tensors(inspect_checkpoint(folder)))
    assert set(stored) - set(yielded) == {EXPERT_HEAD}
    assert all(torch.equal(stored[name], tensor) for name, tensor in yielded.items())


@pytest.mark.parametrize('kept', [EMBEDDING, HEAD])
def test_a_matrix_stored_once_serves_as_both(copy_of, kept):
    dropped = {EMBEDDING: HEAD, HEAD: EMBEDDING}[kept]
    folder = rewrite(copy_of('pi05_lerobot'), lambda t: without(t, dropped))
    assert inspect_checkpoint(folder).tied_head
    params = loaded(folder)
    assert torch.equal(params[EMBEDDING], params[HEAD])


def test_a_fine_tune_may_hold_two_different_matrices(copy_of):
    folder = rewrite(
        copy_of('pi05_lerobot'), lambda t: {**t, f'model.{HEAD}': t[f'model.{HEAD}'] * 2.0}
    )
    assert not inspect_checkpoint(folder).tied_head
    params = loaded(folder)
    assert torch.equal(params[HEAD], params[EMBEDDING] * 2.0)


def test_values_are_converted_on_copy(copy_of):
    folder = copy_of('pi05_lerobot')
    exact, half = loaded(folder), loaded(folder, torch.bfloat16)
    assert all(torch.equal(exact[name].bfloat16(), half[name]) for name in exact)


def test_stored_bfloat16_is_read_and_reported(copy_of):
    folder = copy_of('pi05_lerobot')
    exact = loaded(folder)
    rewrite(folder, lambda t: {name: tensor.bfloat16() for name, tensor in t.items()})
    assert inspect_checkpoint(folder).dtype == 'bfloat16'
    assert equal(loaded(folder), {name: t.bfloat16().float() for name, t in exact.items()})


def test_progress_ends_at_one_and_never_falls(copy_of):
    seen = []
    loaded(copy_of('pi05_openpi_format'), progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


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


@pytest.mark.parametrize('case', ['pi05_lerobot', 'pi05_openpi_format'])
def test_sharded_weights_equal_whole_ones(copy_of, case):
    folder = copy_of(case)
    whole = loaded(folder)
    names = shard(folder)
    assert [file.name for file in inspect_checkpoint(folder).weight_files] == names
    assert equal(loaded(folder), whole)


def test_a_missing_or_truncated_shard_is_named(copy_of):
    folder = copy_of('pi05_lerobot')
    last = folder / shard(folder)[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    with pytest.raises(OxygenError, match=f'{last.name}: truncated'):
        inspect_checkpoint(folder)
    last.unlink()
    with pytest.raises(OxygenError, match=f'{last.name}: does not exist'):
        inspect_checkpoint(folder)


@pytest.mark.parametrize('index', ['{}', '{"weight_map": {}}', '{"weight_map": []}'])
def test_an_index_without_a_weight_map(copy_of, index):
    folder = copy_of('pi05_lerobot')
    shard(folder)
    (folder / 'model.safetensors.index.json').write_text(index)
    with pytest.raises(OxygenError, match='index.json: has no weight_map'):
        inspect_checkpoint(folder)


def test_a_tensor_in_two_shards(copy_of):
    folder = copy_of('pi05_lerobot')
    first, second, _ = shard(folder)
    again = next(iter(load_file(folder / first).items()))
    save_file(dict([*load_file(folder / second).items(), again]), folder / second)
    with pytest.raises(OxygenError, match=f'{second} holds {again[0]}, which the index has in'):
        inspect_checkpoint(folder)


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
    with pytest.raises(OxygenError, match=f'{names[0]} lacks model.*which the index has in'):
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


def rename(tensors):
    return {**without(tensors, K_PROJ), f'model.{K_PROJ}s': tensors[f'model.{K_PROJ}']}


def drop(tensors):
    return without(tensors, K_PROJ)


def transpose(tensors):
    return {**tensors, f'model.{K_PROJ}': tensors[f'model.{K_PROJ}'].T.contiguous()}


def add(tensors):
    return {**tensors, 'model.reward_head.weight': torch.zeros(2)}


@pytest.mark.parametrize(
    ('damage', 'said'),
    [
        (rename, [f'{K_PROJ} is missing', f'{K_PROJ}s is unexpected', '2 tensors differ']),
        (drop, [f'{K_PROJ} is missing', '1 tensors differ']),
        (transpose, [f'{K_PROJ} has shape [64, 16], [16, 64] expected']),
        (add, ['reward_head.weight is unexpected']),
        (lambda t: add(drop(t)), [f'{K_PROJ} is missing', 'reward_head.weight']),
    ],
)
def test_a_damaged_set_of_weights_is_refused_with_names(copy_of, damage, said):
    """From the headers alone, and again by the loader when nobody has checked."""
    folder = rewrite(copy_of('pi05_lerobot'), damage)
    info = inspect_checkpoint(folder)
    shapes = tensor_shapes(info.arch)
    params = {name: torch.empty(shape) for name, shape in shapes.items()}
    for attempt in (
        lambda: check_tensors(info, shapes),
        lambda: load_into(params, iter_tensors(info), where=str(folder)),
    ):
        with pytest.raises(OxygenError) as caught:
            attempt()
        assert all(text in str(caught.value) for text in [str(folder), *said])


def test_a_network_that_cannot_even_be_measured(copy_of):
    folder = rewrite(copy_of('pi05_lerobot'), lambda t: without(t, 'action_in_proj.weight'))
    with pytest.raises(OxygenError, match=r'tensor action_in_proj\.weight is missing'):
        inspect_checkpoint(folder)


def test_known_extras_are_left_out(copy_of):
    """As LeRobot's own loader leaves them out; an unknown one is an error (see above)."""
    extras = {
        'model.state_proj.weight': torch.zeros(2, 2),
        'model.state_proj.bias': torch.zeros(2),
        'model.paligemma_with_expert.gemma_expert.model.norm.weight': torch.zeros(48),
        'model.paligemma_with_expert.gemma_expert.model.layers.0.input_layernorm.weight': (
            torch.zeros(48)
        ),
    }
    folder = copy_of('pi05_lerobot')
    whole = loaded(folder)
    rewrite(folder, lambda t: {**t, **extras})
    assert equal(loaded(folder), whole)


def test_time_mlp_under_its_old_name(copy_of):
    folder = copy_of('pi05_lerobot')
    whole = loaded(folder)
    rewrite(
        folder,
        lambda t: {name.replace('.time_mlp_', '.action_time_mlp_'): x for name, x in t.items()},
    )
    assert equal(loaded(folder), whole)


def test_the_same_tensor_under_two_names_is_ambiguous(copy_of):
    folder = rewrite(
        copy_of('pi05_lerobot'), lambda t: {**t, K_PROJ: t[f'model.{K_PROJ}'].clone()}
    )
    with pytest.raises(OxygenError, match='is stored twice'):
        inspect_checkpoint(folder)


def test_integer_weights_are_refused(copy_of):
    folder = rewrite(
        copy_of('pi05_lerobot'),
        lambda t: {**t, f'model.{K_PROJ}': t[f'model.{K_PROJ}'].to(torch.int8)},
    )
    with pytest.raises(OxygenError, match='k_proj.weight is stored as I8'):
        inspect_checkpoint(folder)

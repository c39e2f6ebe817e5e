"""Weights: every tensor of the model filled, every tensor of the file used, or a refusal."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from stored import K_PROJ, loaded, rewrite, shard

from oxygen_ros.checkpoint import (
    check_tensors,
    inspect_checkpoint,
    iter_tensors,
    load_into,
    tensor_shapes,
)
from oxygen_ros.checkpoint.arch import EMBED, LM_HEAD
from oxygen_ros.types import OxygenError

EXPERT_HEAD = 'paligemma_with_expert.gemma_expert.lm_head.weight'
EMBEDDING = 'paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight'
HEAD = 'paligemma_with_expert.paligemma.lm_head.weight'


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

"""Random checkpoints: read by the same loader, the same bytes every time, healthy when run."""

import filecmp
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from oxygen_ros.checkpoint import (
    check_tensors,
    inspect_checkpoint,
    iter_tensors,
    load_into,
    random_pi05,
    tensor_shapes,
)
from oxygen_ros.checkpoint.random_pi05 import SIZES, write_random_checkpoint
from oxygen_ros.checkpoint.random_tokenizer import WORDS
from oxygen_ros.policy import Policy
from oxygen_ros.types import LanguageRequest, Observation, OxygenError


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    return write_random_checkpoint(
        tmp_path_factory.mktemp('random') / 'tiny',
        cameras=('front', 'wrist'),
        state_dim=5,
        action_dim=4,
        horizon=6,
    )


def test_it_is_what_was_asked_for(tiny):
    info = inspect_checkpoint(tiny)
    assert (info.format, info.cameras, info.dtype) == ('lerobot', ('front', 'wrist'), 'float32')
    assert (info.state_dim, info.action_dim, info.arch.horizon) == (5, 4, 6)
    for key, value in SIZES['tiny'].items():
        assert getattr(info.arch, key) == value, key
    reach = info.normalization.action.span_out
    assert ((reach >= 0.99) & (reach <= 3.01)).all()


def test_it_is_read_strictly_and_finite(tiny):
    info = inspect_checkpoint(tiny)
    shapes = tensor_shapes(info.arch)
    check_tensors(info, shapes)
    params = {name: torch.full(shape, torch.nan) for name, shape in shapes.items()}
    load_into(params, iter_tensors(info))
    assert all(torch.isfinite(param).all() for param in params.values())
    assert 1e6 < sum(param.numel() for param in params.values()) < 2e6


def test_the_same_seed_writes_the_same_bytes(tiny, tmp_path):
    again, other = (
        write_random_checkpoint(
            tmp_path / str(seed),
            seed=seed,
            cameras=('front', 'wrist'),
            state_dim=5,
            action_dim=4,
            horizon=6,
        )
        for seed in (0, 1)
    )
    names = sorted(str(p.relative_to(tiny)) for p in tiny.rglob('*') if p.is_file())
    assert filecmp.cmpfiles(tiny, again, names, shallow=False)[0] == names
    assert 'model.safetensors' in filecmp.cmpfiles(tiny, other, names, shallow=False)[1]


def test_sharded_writing_gives_the_same_tensors(tiny, tmp_path, monkeypatch):
    """As 'full' is written: shards with an index, head and embedding stored once."""
    monkeypatch.setattr(random_pi05, '_SHARD_VALUES', 200_000)
    monkeypatch.setattr(random_pi05, '_TIED_ABOVE', 1000)
    folder = write_random_checkpoint(
        tmp_path / 'x', cameras=('front', 'wrist'), state_dim=5, action_dim=4, horizon=6
    )
    info = inspect_checkpoint(folder)
    assert info.tied_head
    assert len(info.weight_files) > 3
    whole, sharded = dict(iter_tensors(inspect_checkpoint(tiny))), dict(iter_tensors(info))
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def observation(policy, number):
    random = np.random.default_rng(number)
    return Observation(
        images={
            camera: random.integers(0, 256, (48, 64, 3), dtype=np.uint8)
            for camera in policy.info.cameras
        },
        state=random.uniform(-0.5, 0.5, policy.info.state_dim).astype(np.float32),
        instruction='pick up the red cup',
        stamp_ns=number,
    )


def test_actions_are_of_unit_scale_and_depend_on_the_frame(tiny):
    policy = Policy.from_checkpoint(tiny)
    scale = inspect_checkpoint(tiny).normalization.action
    noise = np.random.default_rng(0).standard_normal((6, 32)).astype(np.float32)
    chunks = [policy.act(observation(policy, number), noise).actions for number in range(4)]
    normalised = (np.stack(chunks) - scale.origin) / scale.span_out * 2.0 - 1.0
    assert 0.1 < normalised.std() < 1.0
    assert np.abs(normalised).max() < 4.0
    assert normalised.std(axis=0).mean() > 0.05


def test_a_small_change_stays_small_through_all_steps(tiny):
    """Else two right implementations would differ by much, as rounding errors do."""
    policy = Policy.from_checkpoint(tiny)
    noise = np.random.default_rng(0).standard_normal((2, 6, 32)).astype(np.float32)
    for number in range(4):
        seen = observation(policy, number)
        first = policy.act(seen, noise[0]).actions
        second = policy.act(seen, noise[0] + 1e-4 * noise[1]).actions
        assert 0.0 < np.abs(first - second).max() < 1e-3


def test_many_layers_do_not_part_the_precisions(tmp_path, monkeypatch):
    """As many layers as the larger sizes have; chaos would make parity checks worthless."""
    monkeypatch.setitem(SIZES, 'small', {**SIZES['tiny'], 'depth': SIZES['small']['depth']})
    folder = write_random_checkpoint(tmp_path / 'deep', 'small')
    chunks = []
    for dtype in ('float32', 'bfloat16'):
        policy = Policy.from_checkpoint(folder, dtype=dtype)
        noise = np.random.default_rng(0).standard_normal((10, 32)).astype(np.float32)
        frames = [policy.act(observation(policy, number), noise) for number in range(2)]
        chunks.append(np.stack([frame.actions for frame in frames]).ravel())
    first, second = chunks
    assert first @ second / np.linalg.norm(first) / np.linalg.norm(second) > 0.995


def test_answers_are_words_that_vary(tiny):
    policy = Policy.from_checkpoint(tiny)
    requests = [
        LanguageRequest('greedy', prompt='what do you see?', max_tokens=40),
        LanguageRequest('sampled', prompt='where is it?', max_tokens=40, temperature=0.7, seed=1),
    ]
    policy.act(observation(policy, 0), requests=requests)
    said = {'greedy': '', 'sampled': ''}
    for delta in policy.stream():
        said[delta.request_id] += delta.text
    for text in said.values():
        words = text.replace(',', ' ').replace('.', ' ').split()
        assert len(set(words)) > len(words) / 3
        assert set(words) <= set(WORDS)


def test_a_folder_that_holds_files_is_left_alone(tiny):
    with pytest.raises(OxygenError, match='holds files already'):
        write_random_checkpoint(tiny)


@pytest.mark.parametrize(
    'wrong',
    [{'size': 'huge'}, {'action_dim': 33}, {'state_dim': 0}, {'horizon': 0}, {'cameras': ()}],
)
def test_impossible_sizes_write_nothing(tmp_path, wrong):
    with pytest.raises(OxygenError, match='allowed|at least one'):
        write_random_checkpoint(tmp_path / 'none', **wrong)
    assert not (tmp_path / 'none').exists()


def test_as_a_command(tmp_path):
    command = [sys.executable, '-m', 'oxygen_ros.checkpoint.random_pi05']
    options = ['--size', 'tiny', '--cameras', 'a', 'b', '--state-dim', '3', '--horizon', '4']
    done = subprocess.run(
        [*command, tmp_path / 'out', *options], capture_output=True, text=True, check=True
    )
    assert done.stdout == f'wrote {tmp_path / "out"}\n'
    info = inspect_checkpoint(tmp_path / 'out')
    assert (info.cameras, info.state_dim, info.arch.horizon) == (('a', 'b'), 3, 4)
    again = subprocess.run([*command, tmp_path / 'out'], capture_output=True, text=True)
    assert again.returncode == 2
    assert 'holds files already' in again.stderr


def test_oxygen_json_states_what_tensors_cannot_tell(tiny):
    stated = json.loads((tiny / 'oxygen.json').read_text())
    sizes = {'heads': 4, 'kv_heads': 1, 'vision_heads': 4, 'depth': 2, 'vision_layers': 2}
    assert stated == {'architecture': sizes}

"""Ways to run a model: the same numbers, nothing captured after ready, an honest fallback."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from test_pi05_golden import GOLDEN, case, normalised, observation

from oxygen_ros.engine import execution
from oxygen_ros.models.kv import bias_of, pool_attention
from oxygen_ros.policy import Policy
from oxygen_ros.types import LanguageRequest, OxygenError

CHECKPOINT = GOLDEN / 'pi05_lerobot' / 'checkpoint'


def load(way, **options):
    return Policy.from_checkpoint(CHECKPOINT, execution=way, **options)


@pytest.fixture(scope='module')
def compiled():
    return load('compiled')


@pytest.fixture(scope='module')
def all_compiled():
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # or it would run plainly
        return load('compiled_graphs')


@pytest.mark.parametrize('way', ['compiled', 'all_compiled'])
@pytest.mark.parametrize('letter', 'abcd')
def test_compiled_layers_meet_the_golden_actions(way, letter, request):
    policy = request.getfixturevalue(way)
    about, inputs, expected = case('pi05_lerobot')
    frame = policy._processor.frame(observation(about, inputs, letter))
    actions = normalised(policy, frame, inputs[f'{letter}.noise'][0])
    wanted = expected[f'{letter}.actions_normalized_padded'][0]
    np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize('way', ['compiled', 'all_compiled'])
def test_nothing_is_compiled_once_a_policy_is_ready(way, request):
    """One, two and three cameras, prompts of several lengths, answers alone and together."""
    compiled = request.getfixturevalue(way)
    assert compiled.stats.fallback == ''
    about, inputs, _ = case('pi05_lerobot')
    before = execution.compilations()
    assert before > 0, 'the fixture compiled something'
    seen = observation(about, inputs, 'd')
    for count, words in ((1, 'go'), (2, 'go on'), (3, 'go on and on'), (3, 'stop')):
        images = dict(list(seen.images.items())[:count])
        frame = dataclasses.replace(seen, images=images, instruction=words)
        request = LanguageRequest(f'{count} {words}', prompt=words, max_tokens=4)
        compiled.act(frame, requests=[request])
    assert [delta.final for delta in compiled.stream()].count(True) == 4
    assert execution.compilations() == before


def functions_of(action):
    """An action's result, and which functions of the engine and the models it called."""
    called = set()

    def note(frame, event, argument):
        parts = frame.f_code.co_filename.split('oxygen_ros/')
        if event == 'call' and parts[-1].startswith(('engine/', 'models/')):
            called.add(frame.f_code)

    sys.setprofile(note)
    try:
        return action(), called
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize('way', ['eager', 'fused'])
def test_c57_a_first_frame_does_nothing_for_the_first_time(way):
    """What it would do for the first time would take longer."""
    policy, warmed_up = functions_of(lambda: load(way))
    about, inputs, _ = case('pi05_lerobot')
    seen = observation(about, inputs, 'd')
    _, first = functions_of(lambda: (policy.observe(seen), policy.step()))
    new = {
        code.co_qualname if hasattr(code, 'co_qualname') else code for code in first - warmed_up
    }
    assert len(first) > 20 and not new, new


def test_fixed_shapes_are_all_captured_before_the_first_frame():
    policy = load('graphs')
    captured = len(policy.engine.runner.captures)
    about, inputs, _ = case('pi05_lerobot')
    for letter in 'abcd':
        policy.act(observation(about, inputs, letter), requests=[LanguageRequest(letter)])
    assert any(delta.token_id >= 0 for delta in policy.stream())
    assert len(policy.engine.runner.captures) == captured


@pytest.mark.parametrize('way', ['graphs', 'compiled'])
def test_c58_a_state_that_changes_the_prompts_length_captures_nothing(way):
    policy = load(way)
    about, inputs, _ = case('pi05_lerobot')
    seen, random = observation(about, inputs, 'a'), np.random.default_rng(0)
    captured = len(policy.engine.runner.captures) if way == 'graphs' else 0
    lengths = set()
    for frame in range(60):
        state = random.uniform(-1, 1, len(seen.state)).astype(np.float32) * 10.0 ** (frame % 3 - 1)
        moved = dataclasses.replace(seen, state=state, stamp_ns=frame)
        lengths.add(len(policy._processor.frame(moved).token_ids))
        policy.act(moved)
    assert len(lengths) > 5, lengths
    assert policy.stats.captures_after_ready == 0 and policy.stats.execution == way
    assert (len(policy.engine.runner.captures) if way == 'graphs' else 0) == captured


def test_a_row_that_was_poisoned_is_clean_for_its_next_frame():
    """Fixed shapes read whole rows: what a failed frame left there must not reach another."""
    policy = load('graphs')
    about, inputs, _ = case('pi05_lerobot')
    seen, noise = observation(about, inputs, 'a'), inputs['a.noise'][0]
    clean = policy.act(seen, noise).actions
    with pytest.raises(OxygenError, match='not finite'):
        policy.act(seen, np.full_like(noise, np.nan))
    np.testing.assert_array_equal(policy.act(seen, noise).actions, clean)


def test_a_way_that_fails_falls_back_to_eager_and_says_so(tmp_path):
    """A machine without a C++ compiler, and with nothing compiled earlier."""
    lines = [
        'import json, sys',
        'from oxygen_ros.policy import Policy',
        "policy = Policy.from_checkpoint(sys.argv[1], execution='compiled')",
        'stats = policy.stats',
        'asked = policy.info.effective["execution"]',
        'print(json.dumps([stats.execution, stats.fallback, asked, stats.frames]))',
    ]
    environment = {**os.environ, 'CXX': '/nowhere/c++', 'TORCHINDUCTOR_CACHE_DIR': str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, '-c', '\n'.join(lines), str(CHECKPOINT)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    way, why, effective, frames = json.loads(ran.stdout)
    assert way == 'eager' and why.startswith('compiled failed: ') and frames == 0
    assert effective == f'eager, because {why}'
    assert "execution 'compiled' failed, now 'eager'" in ran.stderr


def test_an_unknown_way_is_refused():
    with pytest.raises(
        OxygenError, match='allowed are auto, eager, fused, compiled, graphs, compiled_graphs'
    ):
        load('turbo')


def test_auto_is_graphs_on_a_gpu():
    assert execution.choose('auto', torch.device('cuda')).name == 'graphs'
    assert execution.choose('auto', torch.device('cpu')).name == 'fused'


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('slots', [16, 37])
def test_a_mask_as_a_bias_changes_no_bit(dtype, slots):
    random = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 1, slots, 64, generator=random, dtype=dtype)
    mask = torch.rand(2, 1, 1, slots, generator=random) < 0.7
    mask[..., 0] = True
    bias = bias_of(mask, query)
    assert bias.stride(-2) % 8 == 0, 'a GPU need not pad it'
    query = query[:, :, :5].repeat(1, 4, 1, 1)
    given, wanted = (pool_attention(None, query, key, value, m, 0.125)[0] for m in (bias, mask))
    torch.testing.assert_close(given, wanted, rtol=0, atol=0)


def test_fused_layers_share_the_weights():
    """No second copy in memory: a change of a weight reaches the fused layers."""
    policy = load('fused')
    about, inputs, _ = case('pi05_lerobot')
    seen, noise = observation(about, inputs, 'a'), inputs['a.noise'][0]
    before = policy.act(seen, noise).actions
    policy.engine.model.lm.layers[0].self_attn.k_proj.weight.mul_(2.0)
    assert not np.array_equal(policy.act(seen, noise).actions, before)

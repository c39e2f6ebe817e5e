"""Invariants 4 and 5: the same answers in every mode, and as a recompute without any cache."""

import numpy as np
import pytest
import torch
from asking import MODES, answers, ask, drain
from families import FAMILIES

RUNS = [(name, way) for name, family in FAMILIES.items() for way in family.executions]
pytestmark = pytest.mark.parametrize('family, execution', RUNS, indirect=True, scope='session')

# six frames with prefixes of different lengths, one masked camera, prompts of 0 to 4 words
FRAMES = [
    ((), ['']),
    ((), ['what is it']),
    ((1,), ['', 'open the drawer']),
    ((), ['say more']),
    ((0, 2), ['go']),
    ((), ['the blue block', '']),
]
TOKENS = 9


def play(policy, observation):
    """Six frames, requests on each, decode steps in between; -> chunks, answers, rows seen."""
    chunks, outputs = [], []
    for number, (without, prompts) in enumerate(FRAMES):
        requests = [
            ask(f'{number}.{index}', prompt, TOKENS) for index, prompt in enumerate(prompts)
        ]
        chunks.append(policy.act(observation(number, without), requests=requests))
        while not policy.idle:
            outputs += policy.step()
            policy.engine.check_integrity()
    outputs += drain(policy)
    return chunks, answers(outputs)


@pytest.fixture(scope='session')
def execution(request):
    return request.param


@pytest.fixture(scope='session')
def played(make_policy, observation, execution):
    return {
        mode: (policy, *play(policy, observation))
        for mode in MODES
        for policy in [make_policy(mode=mode, budget=2, max_rows=8, execution=execution)]
    }


def test_actions_are_bit_equal_in_all_modes(played):
    for number in range(len(FRAMES)):
        chunks = [played[mode][1][number] for mode in MODES]
        for chunk in chunks[1:]:
            np.testing.assert_array_equal(chunk.actions, chunks[0].actions)
    first, second = played['continuous'][1][:2]
    assert not np.array_equal(first.actions, second.actions), 'frames differ'


def test_actions_are_bit_equal_for_noise_given_by_hand(make_policy, observation, execution):
    policies = [make_policy(mode=mode, execution=execution) for mode in MODES]
    spec = policies[0].engine.model.spec
    random = np.random.default_rng(5)
    noise = random.standard_normal((spec.horizon, spec.action_dim)).astype(np.float32)
    chunks = [policy.act(observation(3), noise, [ask('q')]).actions for policy in policies]
    np.testing.assert_array_equal(chunks[0], chunks[1])
    np.testing.assert_array_equal(chunks[0], chunks[2])


@pytest.fixture(scope='session')
def recomputed(family, make_policy, observation):
    """Request id -> its tokens by a recomputation of that request alone."""
    policy = make_policy(execution='eager')
    return {
        f'{number}.{index}': full_recompute(
            family, policy, observation(number, without), prompt, TOKENS
        )
        for number, (without, prompts) in enumerate(FRAMES)
        for index, prompt in enumerate(prompts)
    }


@pytest.mark.parametrize('mode', MODES)
def test_tokens_equal_a_full_recompute_without_a_cache(played, recomputed, mode):
    assert played[mode][2] == recomputed


def test_rows_really_shared_a_batch(played):
    assert played['continuous'][0].stats.rows_max >= 4
    assert played['shared_kv'][0].stats.rows_max == 1
    assert played['isolated'][0].stats.rows_max == 1


def test_answers_of_different_frames_differ(played):
    texts = {tuple(ids) for ids in played['continuous'][2].values()}
    assert len(texts) == sum(len(prompts) for _, prompts in FRAMES)


@torch.inference_mode()
def full_recompute(family, policy, observation, prompt, count):
    """Greedy tokens of one request alone, the whole sequence computed anew for each."""
    model = policy.engine.model
    words = policy._processor.prompt_tokens(prompt)
    logits = family.recompute(model, policy._processor.frame(observation))
    tokens = []
    for _ in range(count):
        token = int(logits(torch.tensor([*words, *tokens], dtype=torch.long)).argmax())
        if token in model.spec.eos_ids:
            break
        tokens.append(token)
    return tokens

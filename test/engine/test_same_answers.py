"""Invariants 4 and 5: the same answers in every mode, and as a recompute without any cache."""

import numpy as np
import pytest
import torch
from asking import MODES, answers, ask, drain
from transformers import GemmaConfig, GemmaModel

# six frames with prefixes of different lengths, one masked camera, prompts of 0 to 4 words
FRAMES = [
    ((), ['']),
    ((), ['what is it']),
    (('left_wrist_0_rgb',), ['', 'open the drawer']),
    ((), ['say more']),
    (('base_0_rgb', 'right_wrist_0_rgb'), ['go']),
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


@pytest.fixture(scope='module', params=['eager', 'fused', 'graphs'])
def played(make_policy, observation, request):
    return {
        mode: (policy, *play(policy, observation))
        for mode in MODES
        for policy in [make_policy(mode=mode, budget=2, max_rows=8, execution=request.param)]
    }


def test_actions_are_bit_equal_in_all_modes(played):
    for number in range(len(FRAMES)):
        chunks = [played[mode][1][number] for mode in MODES]
        for chunk in chunks[1:]:
            np.testing.assert_array_equal(chunk.actions, chunks[0].actions)
    first, second = played['continuous'][1][:2]
    assert not np.array_equal(first.actions, second.actions), 'frames differ'


def test_actions_are_bit_equal_for_the_same_noise_given_by_hand(make_policy, observation):
    noise = np.random.default_rng(5).standard_normal((10, 32)).astype(np.float32)
    chunks = [
        make_policy(mode=mode).act(observation(3), noise, [ask('q')]).actions for mode in MODES
    ]
    np.testing.assert_array_equal(chunks[0], chunks[1])
    np.testing.assert_array_equal(chunks[0], chunks[2])


@pytest.mark.parametrize('mode', MODES)
def test_tokens_equal_a_full_recompute_without_a_cache(played, observation, mode):
    policy, _, tokens = played[mode]
    for number, (without, prompts) in enumerate(FRAMES):
        for index, prompt in enumerate(prompts):
            expected = full_recompute(policy, observation(number, without), prompt, TOKENS)
            assert tokens[f'{number}.{index}'] == expected, f'{mode} {number}.{index}'


def test_rows_really_shared_a_batch(played):
    assert played['continuous'][0].stats.rows_max >= 4
    assert played['shared_kv'][0].stats.rows_max == 1
    assert played['isolated'][0].stats.rows_max == 1


def test_answers_of_different_frames_differ(played):
    texts = {tuple(ids) for ids in played['continuous'][2].values()}
    assert len(texts) == sum(len(prompts) for _, prompts in FRAMES)


@torch.inference_mode()
def full_recompute(policy, observation, prompt, count):
    """Greedy tokens of one request alone: the whole sequence through a plain Gemma each time."""
    model = policy.engine.model
    inputs = policy._processor.frame(observation)
    words = torch.tensor(policy._processor.prompt_tokens(prompt), dtype=torch.long)
    backbone = plain_gemma(model)
    prefix = torch.cat(
        [model.embed_images(inputs.pixel_values), backbone.embed_tokens(inputs.token_ids)]
    )
    tokens = []
    for _ in range(count):
        tail = backbone.embed_tokens(torch.cat([words, torch.tensor(tokens, dtype=torch.long)]))
        sequence = torch.cat([prefix, tail])
        seen = torch.ones(len(sequence), len(sequence), dtype=torch.bool).tril()
        seen[: len(prefix), : len(prefix)] = True
        mask = torch.zeros(seen.shape).masked_fill(~seen, -2.3819763e38)
        hidden = backbone(
            inputs_embeds=sequence[None],
            attention_mask=mask[None, None],
            position_ids=torch.arange(len(sequence))[None],
            use_cache=False,
        ).last_hidden_state
        token = int(model.lm_head(hidden[0, -1]).argmax())
        if token in model.spec.eos_ids:
            break
        tokens.append(token)
    return tokens


def plain_gemma(model):
    """transformers' Gemma with eager attention and the same weights: none of our cache code."""
    config = GemmaConfig(**{**model.lm.config.to_dict(), 'attn_implementation': 'eager'})
    backbone = GemmaModel(config).eval()
    backbone.load_state_dict(model.lm.state_dict())
    return backbone

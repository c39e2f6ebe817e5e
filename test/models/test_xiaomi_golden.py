"""Xiaomi-Robotics-0 against numbers that its own runtime computed (test/golden/xr0)."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from oxygen_ros.policy import Policy
from oxygen_ros.types import LanguageRequest, Observation, Overlap, OxygenError

GOLDEN = Path(__file__).parents[1] / 'golden' / 'xr0'
CHECKPOINT = GOLDEN / 'checkpoint'
SLOTS = {'Base View': 'base_view', 'Left-Wrist View': 'left_wrist_view'}
ABOUT = json.loads((GOLDEN / 'case.json').read_text())['observations']
INPUTS, EXPECTED = (load_file(GOLDEN / f'{name}.safetensors') for name in ('inputs', 'expected'))


def observation(letter):
    about = ABOUT[letter]
    images = {SLOTS[view]: INPUTS[f'{letter}.image.{i}'] for i, view in enumerate(about['views'])}
    return Observation(images, INPUTS[f'{letter}.state'][0, 0], about['task'])


@pytest.fixture(scope='module')
def policies():
    """Observation letter -> the policy of its robot, which never stops at <|im_end|>."""
    made = {}
    for letter, about in ABOUT.items():
        policy = Policy.from_checkpoint(CHECKPOINT, robot_tag=about['robot_type'])
        model = policy.engine.model
        model.spec = dataclasses.replace(model.spec, eos_ids=frozenset())
        made[letter] = policy
    return made


def answer(policy, letter, requests=()):
    """The engine's answer of a frame with the golden noise."""
    for request in requests:
        policy.engine.submit(request, [])
    frame = policy._processor.frame(observation(letter))
    policy.engine.observe(0, frame, torch.from_numpy(INPUTS[f'{letter}.noise'][0]))
    (given,) = policy.engine.step()
    return given


@pytest.mark.parametrize('letter', 'ab')
def test_prompt_and_images(policies, letter):
    """Both prompts of the makers: ours is the shared part, and the action branch's own words."""
    frame = policies[letter]._processor.frame(observation(letter))
    shared = INPUTS[f'{letter}.language_input_ids'][0].tolist()
    assert frame.token_ids.tolist() == shared
    whole = INPUTS[f'{letter}.input_ids'][0].tolist()
    assert frame.token_ids.tolist() + frame.suffix_ids.tolist() == whole
    np.testing.assert_array_equal(frame.grid, EXPECTED[f'{letter}.image_grid_thw'])
    first = EXPECTED[f'{letter}.pixel_values_first_image']
    np.testing.assert_array_equal(frame.pixel_values[: len(first)], first)


@pytest.mark.parametrize('letter', 'ab')
def test_positions_and_keys_and_values(policies, letter):
    """The layers that the action expert reads, its own words' slots included."""
    policy = policies[letter]
    frame = policy._processor.frame(observation(letter))
    wanted = EXPECTED[f'{letter}.position_ids'][:, :, : len(frame.token_ids)]
    positions, offset = policy.engine.model.vlm.positions(frame.token_ids, frame.grid)
    np.testing.assert_array_equal(positions, wanted)
    assert offset == wanted.max() + 1 - len(frame.token_ids) < 0
    answer(policy, letter)
    length = INPUTS[f'{letter}.input_ids'].shape[1]
    for name, layers in (('k', policy.engine.pool.keys), ('v', policy.engine.pool.values)):
        for layer in (2, 3):
            held = layers[layer][0, :, :length].numpy()
            wanted = EXPECTED[f'{letter}.vlm_{name}.{layer}'][0]
            np.testing.assert_allclose(held, wanted, rtol=0, atol=5e-5)


@pytest.mark.parametrize('letter', 'ab')
def test_actions(policies, letter):
    policy = policies[letter]
    actions = answer(policy, letter).actions
    wanted = EXPECTED[f'{letter}.actions_normalized'][0]
    np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-5)
    robot = policy.act(observation(letter), INPUTS[f'{letter}.noise'][0]).actions
    wanted = EXPECTED[f'{letter}.actions_robot'][0]
    assert robot.shape == (len(wanted), 7) and not wanted[:, 7:].any()
    np.testing.assert_allclose(robot, wanted[:, :7], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('letter', 'ab')
def test_language_from_the_shared_prefix(policies, letter):
    policy = policies[letter]
    given = answer(policy, letter, [LanguageRequest(letter, max_tokens=20)])
    logits = policy.engine.model.logits(given.frame.prefilled.last_hidden[None])[0].numpy()
    wanted = EXPECTED[f'{letter}.language_logits'][0]
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4)
    tokens = []
    while policy.engine.scheduler.live:
        policy.grant()
        tokens += [output.token for output in policy.engine.step()]
    assert tokens == EXPECTED[f'{letter}.language_tokens'].tolist()
    assert policy.engine.pool.forks == 0


@pytest.mark.parametrize('letter', 'ab')
def test_bfloat16_actions_point_the_same_way(policies, letter):
    tag = ABOUT[letter]['robot_type']
    half = Policy.from_checkpoint(CHECKPOINT, dtype='bfloat16', robot_tag=tag)
    first, second = (answer(p, letter).actions.ravel() for p in (policies[letter], half))
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert cosine >= 0.999, cosine


# -- what the golden cases do not vary


@pytest.fixture
def varied(tmp_path):
    """A policy of the golden checkpoint with keys in its oxygen.json."""

    def make(**keys):
        folder = tmp_path / '-'.join(keys)
        shutil.copytree(CHECKPOINT, folder)
        (folder / 'oxygen.json').write_text(json.dumps(keys))
        return Policy.from_checkpoint(folder, robot_tag='libero_tiny')

    return make


def plain_actions(policy, letter, window, offset, clean):
    """The expert by the words of models.md: one forward per step, masks and positions by loops,
    keys and values read from a prefix that is computed by the policy's backbone alone.
    """
    model = policy.engine.model
    answer(policy, letter)
    length = INPUTS[f'{letter}.input_ids'].shape[1]
    first = int(EXPECTED[f'{letter}.position_ids'].max()) + 1
    noise = torch.from_numpy(INPUTS[f'{letter}.noise'])
    steps, (horizon, _) = 5, noise[0].shape
    tokens = horizon + 2
    seen = torch.zeros(tokens, length + tokens, dtype=torch.bool)
    positions = torch.zeros(3, 1, tokens, dtype=torch.long)
    for query in range(tokens):
        for other in range(length + tokens):
            own = other - length
            near = window is None or own < 2 or query - own <= window
            seen[query, other] = own <= query and near
        positions[:, 0, query] = first + query + (offset if query >= 2 + len(clean) else 0)
    rotary = model.vlm.model.language_model.rotary_emb
    cos, sin = (part[:, None] for part in rotary(noise, position_ids=positions))
    state = model.state_projector(torch.from_numpy(INPUTS[f'{letter}.state']))
    actions = noise.clone()
    actions[0, : len(clean)] = clean
    for step in range(steps):
        time = model.t_projector(model.t_embedder(torch.tensor([step / steps]) * 1000))
        hidden = torch.cat(
            [
                model.sink.weight[None],
                state,
                model.action_projector(actions * model.action_mask),
            ],
            dim=1,
        )
        for index, layer in enumerate(model.dit.layers):
            a, b, c, d, e, f = (layer.adaln_table + time.view(6, -1)).unbind()
            normed = layer.input_layernorm(hidden) * (1 + b) + a
            query, key, value = (
                part.transpose(1, 2)
                for part in layer.attn.qkv_proj(normed).view(1, tokens, 3, 2, 16).unbind(2)
            )
            query, key = layer.attn.q_norm(query), layer.attn.k_norm(key)
            query, key = (
                part * cos + torch.cat([-part[..., 8:], part[..., :8]], -1) * sin
                for part in (query, key)
            )
            pool = policy.engine.pool
            key = torch.cat([pool.keys[2 + index][:1, :, :length], key], dim=2)
            value = torch.cat([pool.values[2 + index][:1, :, :length], value], dim=2)
            scores = (query @ key.transpose(2, 3) / 4).masked_fill(~seen, -torch.inf)
            mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(1, tokens, 32)
            hidden = layer.middle_layernorm(hidden + c * layer.attn.o_proj(mixed))
            changed = layer.mlp(layer.post_layernorm(hidden) * (1 + e) + d)
            hidden = layer.final_layernorm(hidden + f * changed)
        velocity = model.action_output_layer(hidden[:, 2:])
        velocity[:, : len(clean)] = 0
        actions = actions + velocity / steps
    return actions[0].numpy()


@pytest.mark.parametrize('window, offset', [(None, 0), (4, 10), (2, 0), (0, 3)])
@torch.no_grad()
def test_window_and_offset_of_the_actions(varied, window, offset):
    keys = {'action_position_offset': offset}
    policy = varied(**keys, **({} if window is None else {'local_window': window}))
    actions = answer(policy, 'a').actions
    wanted = plain_actions(policy, 'a', window, offset, torch.zeros(0, 32))
    np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-5)
    golden = EXPECTED['a.actions_normalized'][0]
    assert (np.abs(actions - golden).max() < 1e-5) == (window is None and offset == 0)


@torch.no_grad()
def test_a_clean_prefix_is_what_the_running_chunk_still_holds(varied):
    """As many certain rows as the checkpoint was trained with stay as they are, bit for bit."""
    policy = varied(prefix_length=3, action_position_offset=10)
    running = policy.act(observation('b'), INPUTS['a.noise'][0]).actions
    for delay, held in ((2, 2), (5, 3), (0, 0)):
        policy.observe(observation('a'), INPUTS['a.noise'][0], Overlap(running[:6], delay))
        (chunk,) = policy.step()
        clean = torch.zeros(held, 32)
        known = policy._processor.network_actions(running[:held], None)
        clean[:, :7] = torch.from_numpy(known)
        wanted = plain_actions(policy, 'a', None, 10, clean)
        wanted = policy._processor.robot_actions(wanted, None)
        np.testing.assert_allclose(chunk.actions, wanted, rtol=0, atol=1e-5)
        np.testing.assert_allclose(chunk.actions[:held], running[:held], rtol=0, atol=1e-6)


def test_without_a_clean_prefix_a_chunk_is_not_continued(policies):
    policy = policies['a']
    overlap = Overlap(np.zeros((3, 7), np.float32), 1)
    with pytest.raises(OxygenError, match='prefix_length is 0.*replace, blend or average'):
        policy.observe(observation('a'), overlap=overlap)
    assert policy.idle


@pytest.mark.parametrize('steps', [1, 10])
def test_other_step_counts(steps):
    """5 is the makers' own; any other number runs, and gives other actions."""
    policy = Policy.from_checkpoint(CHECKPOINT, denoise_steps=steps, robot_tag='libero_tiny')
    assert policy.info.effective['denoise_steps'] == str(steps)
    actions = answer(policy, 'a').actions
    assert np.isfinite(actions).all()
    assert np.abs(actions - EXPECTED['a.actions_normalized'][0]).max() > 1e-3

"""StarVLA's heads against plain loops over their weights, and what they share with language."""

import math

import numpy as np
import pytest
from torch.nn import functional

from oxygen_ros.checkpoint.random_starvla import write_random_checkpoint
from oxygen_ros.engine.request import FrameState
from oxygen_ros.models.qwen_vl import HIDDEN
from oxygen_ros.policy import Policy
from oxygen_ros.processing.fast import cosines
from oxygen_ros.types import FrameDropped, LanguageRequest, Observation, Overlap, OxygenError

torch = pytest.importorskip('torch')


@pytest.fixture(scope='module')
def policy_of(tmp_path_factory):
    """Head -> its policy, from a random run that is written once."""
    made = {}

    def make(head, backbone='qwen3_vl', **more):
        key = head, backbone, *more
        if key not in made:
            folder = tmp_path_factory.mktemp('runs') / head
            write_random_checkpoint(folder, head=head, backbone=backbone, ends=False, **more)
            made[key] = Policy.from_checkpoint(folder)
        return made[key]

    return make


def observation(number=0):
    random = np.random.default_rng(number)
    images = {
        name: random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        for name in ('base', 'left_wrist', 'right_wrist')
    }
    state = random.uniform(-0.5, 0.5, 8).astype(np.float32)
    return Observation(images, state, 'pick up the red cup', 1000 + number)


def served(policy, guide=None):
    """Frame and normalised actions of one observation."""
    frame = policy._processor.frame(observation())
    policy.engine.observe(0, frame, policy._noise(7, None), None, guide)
    (answer,) = policy.engine.step()
    return answer.frame, answer.actions


class Plain:
    """A flow head as its makers write it down: everything anew in every step, in float64."""

    def __init__(self, model):
        self.weights = {name: value.double() for name, value in model.named_parameters()}
        self.heads = model.layout.sizes.heads

    def linear(self, name, values):
        return values @ self.weights[f'{name}.weight'].T + self.weights[f'{name}.bias']

    def mlp(self, name, values):
        return self.linear(f'{name}.layer2', self.linear(f'{name}.layer1', values).relu())

    def attention(self, name, values, looked):
        def split(which, source):
            made = self.linear(f'{name}.to_{which}', source)
            return made.view(len(source), self.heads, -1).transpose(0, 1)

        query, key, value = split('q', values), split('k', looked), split('v', looked)
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        mixed = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
        return self.linear(f'{name}.to_out.0', mixed)

    def velocity(self, actions, state, bucket, states):
        """actions [H, A]; states: what each block looks at, None for its own tokens."""
        head = 'action_model'
        width = self.weights[f'{head}.future_tokens.weight'].shape[1]
        rates = torch.arange(width // 2, dtype=torch.float64) * (math.log(1e4) / (width // 2))
        angles = bucket * torch.exp(-rates)
        encoded = torch.cat([angles.sin(), angles.cos()]).expand(len(actions), -1)
        hidden = torch.cat([self.linear(f'{head}.action_encoder.layer1', actions), encoded], -1)
        hidden = functional.silu(self.linear(f'{head}.action_encoder.layer2', hidden))
        hidden = self.linear(f'{head}.action_encoder.layer3', hidden)
        hidden = hidden + self.weights[f'{head}.position_embedding.weight'][: len(actions)]
        tokens = torch.cat(
            [
                self.mlp(f'{head}.state_encoder', state),
                self.weights[f'{head}.future_tokens.weight'],
                hidden,
            ]
        )
        time = self.time(bucket)
        for index, seen in enumerate(states):
            block = f'{head}.model.transformer_blocks.{index}'
            scale, shift = self.linear(f'{block}.norm1.linear', functional.silu(time)).chunk(2)
            normed = functional.layer_norm(tokens, (width,)) * (1 + scale) + shift
            looked = normed if seen is None else seen
            tokens = tokens + self.attention(f'{block}.attn1', normed, looked)
            normed = functional.layer_norm(tokens, (width,))
            normed = functional.gelu(
                self.linear(f'{block}.ff.net.0.proj', normed), approximate='tanh'
            )
            tokens = tokens + self.linear(f'{block}.ff.net.2', normed)
        return self.mlp(f'{head}.action_decoder', tokens[-len(actions) :])

    def time(self, bucket):
        name = 'action_model.model.timestep_encoder.timestep_embedder'
        angles = bucket * torch.exp(-torch.arange(128, dtype=torch.float64) * math.log(1e4) / 127)
        hidden = self.linear(f'{name}.linear_1', torch.cat([angles.cos(), angles.sin()]))
        return self.linear(f'{name}.linear_2', functional.silu(hidden))


@pytest.mark.parametrize('backbone', ['qwen3_vl', 'qwen2_5_vl'])
def test_qwenpi_looks_at_each_layer_and_at_itself_in_turn(policy_of, backbone):
    """No golden data holds this head; QwenPI_v3's and QwenGR00T's hold its parts."""
    policy = policy_of('QwenPI', backbone)
    model = policy.engine.model
    frame, actions = served(policy)
    again = FrameState(0, 0, policy._processor.frame(observation()), None)
    plain, extras = Plain(model), policy.engine.runner.prefill(again, 0).extras
    depth = model.vlm.depth
    assert sorted(extras[HIDDEN]) == list(range(1, depth + 1, 2))
    states = [None if block % 2 else extras[HIDDEN][block + 1].double() for block in range(depth)]
    wanted = frame.noise.double()
    for step in range(4):
        bucket = int(step / 4 * 1000)
        wanted = wanted + plain.velocity(wanted, extras['state'].double(), bucket, states) / 4
    np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize('head', ['QwenPI', 'QwenPI_v3', 'QwenGR00T'])
def test_conditioning_is_projected_once_per_frame(policy_of, head):
    policy = policy_of(head)
    blocks = policy.engine.model.action_model.model.transformer_blocks
    calls = [0] * len(blocks)

    def count(index):
        def hook(*_):
            calls[index] += 1

        return hook

    hooks = [block.attn1.to_k.register_forward_hook(count(i)) for i, block in enumerate(blocks)]
    served(policy)
    for hook in hooks:
        hook.remove()
    interleaved = policy.engine.model.layout.head.interleaved
    assert calls == [4 if interleaved and i % 2 else 1 for i in range(len(blocks))]


@pytest.mark.parametrize('head', ['QwenPI_v3', 'QwenGR00T'])
def test_a_flow_head_continues_a_running_chunk(policy_of, head):
    policy = policy_of(head)
    free = policy.act(observation()).actions
    running = Overlap(np.clip(free[:4] + 0.3, -0.4, 0.4).astype(np.float32), delay=2)
    policy.observe(observation(), overlap=running)
    (chunk,) = policy.step()
    before = np.abs(free[:2] - running.actions[:2]).mean()
    assert np.abs(chunk.actions[:2] - running.actions[:2]).mean() < before / 2


@pytest.mark.parametrize('head', ['QwenOFT', 'QwenFast'])
def test_the_others_say_that_they_cannot(policy_of, head):
    policy = policy_of(head, **({'horizon': 2} if head == 'QwenFast' else {}))
    running = Overlap(np.zeros((1, 7), np.float32), delay=1)
    with pytest.raises(OxygenError, match=f'{head} has no flow that could continue'):
        policy.observe(observation(), overlap=running)


def test_qwenfast_is_two_streams_from_one_prefix(policy_of):
    """What is decoded as actions is what a request without words says, token for token."""
    policy = policy_of('QwenFast', horizon=2)
    policy.act(observation(), requests=[LanguageRequest('q', max_tokens=14)])
    said = [delta.token_id for delta in policy.stream()]
    frame = policy._processor.frame(observation())
    model = policy.engine.model
    policy.engine.observe(0, frame, policy._noise(0, None))
    (answer,) = policy.engine.step()
    assert len(said) == 14 and len(set(said)) > 1
    np.testing.assert_array_equal(model.decode(said), answer.actions)


def test_an_answer_that_is_no_chunk_drops_its_frame_alone(policy_of):
    policy = policy_of('QwenFast', horizon=2)
    model = policy.engine.model
    numbers, model.decode._numbers = model.decode._numbers, {}  # as if it said something else
    policy.submit(LanguageRequest('q', max_tokens=3))
    policy.observe(observation())
    (dropped,) = policy.step()
    model.decode._numbers = numbers
    assert isinstance(dropped, FrameDropped)
    assert '14 tokens holds 0 of actions' in dropped.problem
    assert '2 steps of 7 are needed' in dropped.problem
    assert [delta.index for delta in policy.stream()] == [0, 1, 2]


def test_fast_is_a_cosine_transform_of_characters(policy_of):
    decode = policy_of('QwenFast', horizon=2).engine.model.decode
    matrix = cosines(6)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(matrix @ np.ones(6), [math.sqrt(6), 0, 0, 0, 0, 0], atol=1e-12)
    chunk = np.random.default_rng(0).uniform(-1, 1, (2, 7))
    coefficients = np.around(cosines(2) @ chunk * 10).astype(int) + 32
    ids = {number: token for token, number in decode._numbers.items()}
    read = decode([5, *(ids[number] for number in coefficients.ravel()), 6])
    np.testing.assert_allclose(read, chunk, atol=0.1)  # half a step of 1 / 10, twice
    np.testing.assert_allclose(cosines(2) @ read * 10 + 32, coefficients, atol=1e-5)

"""StarVLA's PI0 against a plain float64 recomputation: no golden data holds this head."""

import math

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from torch.nn import functional

from oxygen_ros.checkpoint.random_starvla import write_random_checkpoint
from oxygen_ros.models.base import FixedShapes
from oxygen_ros.policy import Policy
from oxygen_ros.types import Observation, Overlap

torch = pytest.importorskip('torch')
CAMERAS = ('base', 'wrist')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A random run whose norms and biases do something."""
    folder = tmp_path_factory.mktemp('runs') / 'PI0'
    write_random_checkpoint(folder, cameras=CAMERAS, head='PI0')
    (file,) = (folder / 'checkpoints').iterdir()
    stored, generator = load_file(file), torch.Generator().manual_seed(3)
    for name, value in stored.items():
        if value.ndim == 1 and 'vision' not in name:
            value += torch.empty_like(value).normal_(0, 0.1, generator=generator)
    save_file(stored, file)
    return folder


@pytest.fixture(scope='module', params=['eager', 'fused', 'graphs'])
def policy(folder, request):
    return Policy.from_checkpoint(folder, execution=request.param)


def observation(number=0, without=()):
    random = np.random.default_rng(number)
    images = {
        name: random.integers(0, 256, (56, 56, 3), dtype=np.uint8)
        for name in CAMERAS
        if name not in without
    }
    state = random.uniform(-0.5, 0.5, 8).astype(np.float32)
    return Observation(images, state, 'pick up the_red cup', 1000 + number)


class Plain:
    """pi0 as its makers write it down: prefix, state and actions in one masked sequence, anew in
    every step, in float64.
    """

    def __init__(self, model):
        self.arch = model.arch
        self.weights = {name: value.double() for name, value in model.named_parameters()}

    def linear(self, name, values):
        made = values @ self.weights[f'{name}.weight'].T
        return made + self.weights[f'{name}.bias'] if f'{name}.bias' in self.weights else made

    def norm(self, name, values):
        exact = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-6)
        return exact * (1 + self.weights[f'{name}.weight'])

    def heads(self, name, values, rotated=True):
        made = self.linear(name, values).view(len(values), -1, self.arch.head_dim).transpose(0, 1)
        if not rotated:
            return made
        half = self.arch.head_dim // 2
        rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(len(values), dtype=torch.float64)[:, None] * rates
        first, second = made[..., :half], made[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def layer(self, index, streams, seen):
        """Both transformers' layer, whose attention is one over all tokens."""
        names = [f'{part}.layers.{index}' for part in ('lm', 'expert')]
        sizes = [len(stream) for stream in streams]
        normed = [
            self.norm(f'{n}.input_layernorm', s) for n, s in zip(names, streams, strict=True)
        ]
        value = torch.cat(
            [
                self.heads(f'{n}.self_attn.v_proj', s, False)
                for n, s in zip(names, normed, strict=True)
            ],
            1,
        )
        query, key = (self.joined(which, names, normed) for which in 'qk')
        groups = len(query) // len(key)
        key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
        scores = query @ key.transpose(1, 2) / math.sqrt(self.arch.head_dim)
        mixed = scores.masked_fill(~seen, -math.inf).softmax(-1) @ value
        parts = mixed.transpose(0, 1).flatten(1).split(sizes)
        return [self.rest(*each) for each in zip(names, streams, parts, strict=True)]

    def joined(self, which, names, normed):
        """Queries or keys [heads, all tokens, D]; positions count over both streams."""
        before = torch.zeros(len(normed[0]), normed[1].shape[1], dtype=torch.float64)
        first = self.heads(f'{names[0]}.self_attn.{which}_proj', normed[0])
        padded = torch.cat([before, normed[1]])
        second = self.heads(f'{names[1]}.self_attn.{which}_proj', padded)[:, len(before) :]
        return torch.cat([first, second], 1)

    def rest(self, name, stream, mixed):
        stream = stream + self.linear(f'{name}.self_attn.o_proj', mixed)
        normed = self.norm(f'{name}.post_attention_layernorm', stream)
        gate = functional.gelu(self.linear(f'{name}.mlp.gate_proj', normed), approximate='tanh')
        up = self.linear(f'{name}.mlp.up_proj', normed)
        return stream + self.linear(f'{name}.mlp.down_proj', gate * up)

    def time(self, time):
        """In float32, as StarVLA takes it: rounding is a part of what the network was told."""
        fraction = torch.linspace(0.0, 1.0, self.arch.expert_width // 2)
        period = 4e-3 * (4.0 / 4e-3) ** fraction
        angles = 1.0 / period * 2 * math.pi * time
        return torch.cat([angles.sin(), angles.cos()]).double()

    def velocity(self, prefix, state, actions, time):
        """prefix [S, W], state [A_state], actions [H, A] -> [H, A]."""
        embedded = self.linear('action_in_proj', actions)
        embedded = torch.cat([embedded, self.time(time).expand(len(actions), -1)], -1)
        embedded = functional.silu(self.linear('time_mlp_in', embedded))
        embedded = self.linear('time_mlp_out', embedded)
        suffix = torch.cat([self.linear('state_proj', state)[None], embedded])
        # three blocks: prefix, state, actions; each sees itself and those before it
        block = torch.tensor([0] * len(prefix) + [1] + [2] * len(actions))
        streams = [prefix, suffix]
        for index in range(self.arch.depth):
            streams = self.layer(index, streams, block[None] <= block[:, None])
        return self.linear('action_out_proj', self.norm('expert.norm', streams[1]))[1:]

    def actions(self, prefix, state, noise, steps=10):
        time = torch.tensor(1.0)
        for _ in range(steps):
            noise = noise - self.velocity(prefix, state, noise, time) / steps
            time = time - torch.tensor(1.0 / steps)
        return noise


@torch.inference_mode()
@pytest.mark.parametrize('without', [(), ('wrist',)])
@pytest.mark.parametrize('number', [0, 1])
def test_actions_are_those_of_a_plain_loop(policy, number, without):
    """The image features are ours, as pi0.5's golden data holds them."""
    model = policy.engine.model
    frame = policy._processor.frame(observation(number, without))
    noise = policy._noise(number, None)
    policy.engine.observe(0, frame, noise)
    (answer,) = policy.engine.step()
    words = model.lm.embed_tokens(frame.token_ids)
    prefix = torch.cat([model.embed_images(frame.pixel_values), words]).double()
    wanted = Plain(model).actions(prefix, frame.state.double(), noise.double())
    np.testing.assert_allclose(answer.actions, wanted, rtol=0, atol=1e-5)
    assert wanted.abs().max() > 0.5


def test_the_state_is_a_token_and_not_in_the_prompt(policy):
    """Padded with zeros; the prompt is the task and a newline, which is a token of its own."""
    frame = policy._processor.frame(observation())
    words = policy._processor.prompt_tokens('pick up the red cup')
    assert frame.token_ids.tolist() == [2, *words, *policy._processor.prompt_tokens('\n')]
    norm = policy._processor._info.normalization.state
    own = (observation().state - norm.origin) / norm.span_in * 2 - 1
    np.testing.assert_allclose(frame.state[:8], own, rtol=1e-6)
    assert frame.state.shape == (32,) and not frame.state[8:].any()


def test_the_state_is_computed_once_per_frame(policy):
    projected, layers = [], []
    model = policy.engine.model
    hooks = [
        model.state_proj.register_forward_hook(lambda *_: projected.append(1)),
        model.expert.layers[0].register_forward_hook(lambda _, given, __: layers.append(given[0])),
    ]
    policy.act(observation())
    for hook in hooks:
        hook.remove()
    assert len(projected) == 1
    assert [len(hidden[0]) for hidden in layers] == [1] + 10 * [model.spec.horizon]
    assert not isinstance(model, FixedShapes), 'the state could not reach a captured act()'


def test_a_running_chunk_is_continued(policy):
    free = policy.act(observation()).actions
    running = Overlap(free[:4] + np.float32(0.3), delay=2)
    policy.observe(observation(), overlap=running)
    (chunk,) = policy.step()
    before = np.abs(free[:2] - running.actions[:2]).mean()
    assert np.abs(chunk.actions[:2] - running.actions[:2]).mean() < before / 2

"""A fourth family, as docs/new-family.md walks through it: one attention layer over bytes."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from oxygen_ros.checkpoint import check_tensors, iter_tensors, load_into
from oxygen_ros.checkpoint.info import CheckpointInfo, Layout, Survey
from oxygen_ros.checkpoint.weights import Naming, weight_files
from oxygen_ros.models.base import ModelSpec, Prefilled
from oxygen_ros.models.family import Family, Footprint, Parts
from oxygen_ros.models.kv import pool_attention

FORMATS = 'toys (toy.json)'
WIDTH, HORIZON, ACTIONS, LONGEST = 16, 4, 2, 64


def recognises(folder):
    return (folder / 'toy.json').is_file()


def survey(folder, robot_tag):
    layout = Layout(
        folder, 'toy', 'toy', ('eye',), 1, ACTIONS, HORIZON, LONGEST, 'float32',
        weight_files(folder), Naming(),
    )  # fmt: skip
    units = SimpleNamespace(summary=lambda: 'none needed', never_moved=lambda: '')
    return Survey(CheckpointInfo, layout, units, folder)


class Processor:
    def frame(self, observation):
        words = [int(observation.images['eye'].mean()), *observation.instruction.encode()]
        return SimpleNamespace(token_ids=torch.tensor(words), truncated=False)

    def prompt_tokens(self, text):
        return list(text.encode())

    def detokenizer(self):
        return SimpleNamespace(push=chr, flush=str)

    def robot_actions(self, normalised, state):
        return normalised.astype(np.float32)


class Toy(nn.Module):
    device, dtype = torch.device('cpu'), torch.float32
    spec = ModelSpec(
        layers=1, kv_heads=1, head_dim=WIDTH, horizon=HORIZON, action_dim=ACTIONS, vocab_size=256,
        max_prefix=LONGEST, suffix_slots=0, eos_ids=frozenset({0}),
    )  # fmt: skip

    def __init__(self):
        super().__init__()
        self.embed, self.qkv = nn.Embedding(256, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.action = nn.Linear(WIDTH, ACTIONS)

    def prefix_length(self, inputs):
        return len(inputs.token_ids)

    def prefill(self, inputs, kv):
        slots = torch.arange(len(inputs.token_ids))
        mask = (slots <= slots[:, None])[None, None]
        hidden = self.extend(inputs.token_ids[None], slots[None], mask, kv)
        return Prefilled(len(slots), 0, hidden[0, -1])

    def act(self, prefilled, kv, noise, steps, guide=None):
        for _ in range(steps):
            noise = noise + (self.action(prefilled.last_hidden) - noise) / 2
        return noise

    def extend(self, tokens, positions, mask, kv):
        hidden = self.embed(tokens) + torch.sin(positions[..., None] / torch.arange(1, WIDTH + 1))
        query, key, value = self.qkv(hidden)[:, None].chunk(3, dim=-1)
        mixed, _ = pool_attention(self, query, *kv.update(key, value, 0), mask, WIDTH**-0.5)
        return hidden + mixed[:, :, 0]

    def logits(self, hidden):
        return hidden @ self.embed.weight.T


def load(info, device, dtype, progress):
    check_tensors(info, footprint(info, 1, 4).tensors)
    model = Toy().requires_grad_(False)
    load_into(dict(model.named_parameters()), iter_tensors(info), progress, str(info.path))
    return Family(model, Processor(), denoise_steps=3)


def footprint(layout, rows, value_bytes):
    tensors = {name: tuple(value.shape) for name, value in Toy().named_parameters()}
    return Footprint(Toy.spec, tensors, 256 * WIDTH * value_bytes, work_bytes=0)


PARTS = Parts(load, footprint, check_tokenizer=lambda folder, layout: None)

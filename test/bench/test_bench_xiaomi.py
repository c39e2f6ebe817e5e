"""Xiaomi-Robotics-0 as the benchmark runs it: sizes as promised, and an engine that serves it."""

import pytest
import torch

from oxygen_ros.bench.setting import Setting, build_engine
from oxygen_ros.bench.xiaomi_robotics_0 import build_model, make_inputs
from oxygen_ros.checkpoint.random_xiaomi_robotics_0 import random_layout
from oxygen_ros.models.registry import footprint
from oxygen_ros.types import LanguageRequest, OxygenError

SETTING = Setting(size='tiny', dtype='float32', cameras=2, prompt_tokens=40, denoise_steps=5)


def test_an_engine_serves_it():
    model = build_model(SETTING)
    engine = build_engine(model, SETTING, 'continuous', 'unlimited')
    first, second = (make_inputs(model, SETTING, number) for number in range(2))
    assert len(first.token_ids) == 2 * 6 + 40 == model.layout.max_prefix
    assert not torch.equal(first.pixel_values, second.pixel_values)
    noise = torch.randn(model.spec.horizon, model.spec.action_dim)
    actions = []
    for number, inputs in enumerate((first, second)):
        engine.submit(LanguageRequest(str(number), max_tokens=5), [])
        engine.observe(number, inputs, noise)
        (answer,) = engine.step()
        actions.append(torch.from_numpy(answer.actions))
    while not engine.idle:
        engine.step()
    assert engine.stats.tokens == 10, 'no answer ends by itself'
    assert 0.3 < torch.stack(actions).std() < 2.0
    assert not torch.equal(*actions)


@pytest.mark.parametrize(
    'size, parameters, kv', [('small', 360e6, 73_728), ('full', 4.7e9, 147_456)]
)
def test_sizes_are_as_promised(size, parameters, kv):
    """Read off modules without memory; kv: bytes of a token in bfloat16."""
    layout = random_layout(size, 3, 300, 60, 30)
    sizes = footprint(layout, 8, 2)
    assert abs(sizes.weight_bytes / 2 / parameters - 1) < 0.03
    spec = sizes.spec
    assert 2 * spec.layers * spec.kv_heads * spec.head_dim * 2 == kv
    assert spec.layers == 36 and spec.horizon == 30


def test_an_unknown_size_is_refused():
    with pytest.raises(OxygenError, match="size is 'huge', allowed: tiny, small, full"):
        random_layout('huge', 3, 300, 60, 10)

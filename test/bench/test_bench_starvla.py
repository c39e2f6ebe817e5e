"""StarVLA's flow heads as the benchmark runs them: sizes, and an engine that serves them."""

import json

import pytest
import torch

from oxygen_ros.bench.__main__ import main
from oxygen_ros.bench.setting import Setting, build_engine
from oxygen_ros.bench.starvla import build_model, make_inputs, random_layout
from oxygen_ros.models.registry import footprint
from oxygen_ros.types import LanguageRequest, OxygenError

SETTING = Setting(size='tiny', dtype='float32', cameras=2, prompt_tokens=40, denoise_steps=4)


@pytest.mark.parametrize('head', ['QwenPI', 'QwenPI_v3', 'QwenGR00T'])
def test_an_engine_serves_it(head):
    model = build_model(SETTING, head)
    engine = build_engine(model, SETTING, 'continuous', 'unlimited')
    first, second = (make_inputs(model, SETTING, number) for number in range(2))
    assert len(first.token_ids) == 2 * 4 + 40 == model.layout.max_prefix
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
    assert not torch.equal(*actions) and torch.stack(actions).abs().max() < 100


@pytest.mark.parametrize('family', ['xiaomi_robotics_0', 'starvla'])
def test_modes_are_measured_on_every_family(family, capsys, tmp_path):
    out = tmp_path / 'result.json'
    own = ['--preset', 'tiny', '--family', family, '--tokens', '4', '--budget', '2']
    assert main([*own, '--rounds', '1', '--frames', '2', '--json', str(out)]) == 0
    result = json.loads(out.read_text())
    assert result['setting']['denoise_steps'] == {'starvla': 4}.get(family, 5)
    assert set(result['modes']) == {'isolated', 'shared_kv', 'continuous'}
    assert result['kv_bytes_copied'] == 0 and result['realised_over_ideal'] > 0
    assert 'speed-up' in capsys.readouterr().out


def test_sizes_are_as_promised():
    """Read off modules without memory; KV bytes of a token in bfloat16."""
    setting = Setting(size='small', prompt_tokens=200, horizon=16)
    sizes = footprint(random_layout(setting, 'QwenPI_v3'), 8, 2)
    assert abs(sizes.weight_bytes / 2 / 500e6 - 1) < 0.2
    spec = sizes.spec
    assert 2 * spec.layers * spec.kv_heads * spec.head_dim * 2 == 73_728
    assert (spec.layers, spec.horizon, spec.suffix_slots) == (36, 16, 0)


def test_what_is_not_measured_is_refused():
    with pytest.raises(OxygenError, match="size is 'full', allowed: tiny, small"):
        random_layout(Setting(size='full'), 'QwenPI_v3')
    with pytest.raises(OxygenError, match="head is 'QwenOFT', measured are QwenPI"):
        random_layout(SETTING, 'QwenOFT')

"""A further family joins through the registry alone, and the engine treats it as any other."""

from pathlib import Path

import numpy as np
import pytest
import torch
import toy_family
from safetensors.torch import save_file

from oxygen_ros.checkpoint import inspection
from oxygen_ros.models import registry
from oxygen_ros.policy import Policy, PolicyOptions
from oxygen_ros.types import LanguageRequest, Observation, OxygenError, Verdict


@pytest.fixture
def toys(monkeypatch):
    """The family, known for one test."""
    monkeypatch.setattr(registry, 'FAMILIES', dict(registry.FAMILIES))
    readers = list(inspection.READERS)
    registry.register('toy', toy_family, toy_family.PARTS)
    yield
    inspection.READERS[:] = readers


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    (tmp_path / 'toy.json').write_text('{}')
    save_file(toy_family.Toy().state_dict(), tmp_path / 'model.safetensors')
    return tmp_path


def observation(number):
    image = np.full((4, 4, 3), 40 * number, np.uint8)
    return Observation({'eye': image}, np.zeros(1, np.float32), f'look {number}', number + 1)


def play(policy):
    """Chunks and words of three frames, two requests on each."""
    chunks, words = [], {}
    for number in range(3):
        requests = [
            LanguageRequest(f'{number}.{prompt}', prompt=prompt, max_tokens=6)
            for prompt in ('', 'why')
        ]
        chunks.append(policy.act(observation(number), requests=requests).actions)
    for delta in policy.stream():
        words.setdefault(delta.request_id, []).append(delta.token_id)
    policy.engine.check_integrity()
    return chunks, words


def test_it_is_under_100_lines_and_knows_no_engine():
    source = Path(toy_family.__file__).read_text()
    assert len(source.splitlines()) < 100
    assert 'oxygen_ros.engine' not in source


def test_modes_give_the_same_answers(toys, checkpoint):
    policies = [Policy.from_checkpoint(checkpoint, mode=m) for m in ('isolated', 'continuous')]
    (first, said), (second, also) = (play(policy) for policy in policies)
    np.testing.assert_array_equal(first, second)
    assert said == also and len(said) == 6
    assert len({tuple(tokens) for tokens in said.values()}) >= 3
    assert [policy.stats.prefills for policy in policies] == [9, 3]
    assert policies[1].info.effective['denoise_steps'] == '3'


def test_it_is_checked_as_any_other(toys, checkpoint):
    info, findings = Policy.preflight(checkpoint, PolicyOptions())
    assert info.family == 'toy' and {f.verdict for f in findings} == {Verdict.OK}
    (checkpoint / 'model.safetensors').write_bytes(b'')
    with pytest.raises(OxygenError, match='truncated or not a safetensors file'):
        Policy.from_checkpoint(checkpoint)


def test_a_name_is_given_once(toys):
    with pytest.raises(OxygenError, match="family 'toy' is known already"):
        registry.register('toy', toy_family, toy_family.PARTS)


def test_what_nobody_knows_lists_what_is_known(toys, checkpoint):
    (checkpoint / 'toy.json').unlink()
    with pytest.raises(OxygenError) as caught:
        Policy.from_checkpoint(checkpoint)
    for known in ('toys', 'StarVLA', 'Xiaomi-Robotics-0', "LeRobot's pi0.5", "openpi's pi0.5"):
        assert known in str(caught.value)

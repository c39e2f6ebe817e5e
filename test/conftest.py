"""Settings for every test process, and golden data that is rebuilt rather than kept twice."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors

# Tiny models are slower on many threads than on one, the more so beside other processes.
os.environ.setdefault('OMP_NUM_THREADS', '1')

# The same examples in every run; HYPOTHESIS_PROFILE=search looks for others.
settings.register_profile('repeatable', derandomize=True)
settings.register_profile('search', derandomize=False)
settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'repeatable'))

GOLDEN = Path(__file__).parent / 'golden'
EMBEDDING = 'paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight'
HEAD = 'paligemma_with_expert.paligemma.lm_head.weight'


@pytest.fixture(scope='session', autouse=True)
def openpi_weights():
    """The file that openpi wrote, byte for byte, from the same weights as LeRobot wrote them."""
    case = GOLDEN / 'pi05_openpi_format'
    wanted, name = (case / 'model.safetensors.sha256').read_text().split()
    if (case / name).exists():
        return
    stored = load_file(GOLDEN / 'pi05_lerobot' / 'checkpoint' / 'model.safetensors')
    tensors = {key.removeprefix('model.'): tensor for key, tensor in stored.items()}
    del tensors[EMBEDDING]  # openpi keeps the tied matrix once and notes its other name
    rebuilt = case / f'{name}.{os.getpid()}'
    save_file(tensors, rebuilt, {EMBEDDING: HEAD})
    found = hashlib.sha256(rebuilt.read_bytes()).hexdigest()
    assert found == wanted, f'{rebuilt} is not the file that openpi wrote: sha256 {found}'
    rebuilt.replace(case / name)  # at once: other test processes may read it


@pytest.fixture(scope='session', autouse=True)
def starvla_weights():
    """StarVLA's runs: its PI05 has pi05_lerobot's weights, the others share a backbone."""
    stored = load_file(GOLDEN / 'pi05_lerobot' / 'checkpoint' / 'model.safetensors')
    tensors = {_starvla_name(key): tensor for key, tensor in stored.items()}
    _write(GOLDEN / 'starvla_pi05', 'steps_1000_model.safetensors', tensors, save_file)
    backbone = load_tensors(GOLDEN / 'starvla_backbone' / 'backbone.safetensors')
    embedding = backbone['qwen_vl_interface.model.model.language_model.embed_tokens.weight']
    backbone['qwen_vl_interface.model.lm_head.weight'] = embedding.clone()
    for case in ('starvla_qwenpi_v3', 'starvla_qwenoft', 'starvla_qwengr00t'):
        tensors = {**backbone, **load_tensors(GOLDEN / case / 'head.safetensors')}
        if case == 'starvla_qwengr00t':
            _write(GOLDEN / case, 'steps_1000_pytorch_model.pt', tensors, torch.save)
        else:
            _write(GOLDEN / case, 'steps_1000_model.safetensors', tensors, save_tensors)


def _starvla_name(key):
    key = key.removeprefix('model.')
    for ours, theirs in (
        ('paligemma_with_expert.paligemma.', 'vlm.model.'),
        ('paligemma_with_expert.', 'action_head.'),
    ):
        if key.startswith(ours):
            return theirs + key.removeprefix(ours)
    return f'action_head.{key}'


def _write(case, name, tensors, save):
    """Into the run's folder of weights, unless it is there."""
    file = case / 'run' / 'checkpoints' / name
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        rebuilt = file.with_name(f'{os.getpid()}.{name}')
        save(tensors, rebuilt)
        rebuilt.replace(file)  # at once: other test processes may read it

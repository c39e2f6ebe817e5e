"""Settings for every test process, and golden data that is rebuilt rather than kept twice."""

import hashlib
import os
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

# Tiny models are slower on many threads than on one, the more so beside other processes.
os.environ.setdefault('OMP_NUM_THREADS', '1')

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

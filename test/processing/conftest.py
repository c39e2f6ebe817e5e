"""Golden cases of both makers, with a processor of each checkpoint."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.numpy import load_file

from oxygen_ros.checkpoint import inspect_checkpoint
from oxygen_ros.processing.pi05 import Pi05Processor
from oxygen_ros.types import Observation

GOLDEN = Path(__file__).parents[1] / 'golden'


@pytest.fixture(scope='session')
def golden():
    """Case name -> info, processor, inputs, expected and observation(letter) of it."""

    def read(name):
        folder = GOLDEN / name
        inputs = load_file(folder / 'inputs.safetensors')
        about = json.loads((folder / 'case.json').read_text())

        def observation(letter):
            prefix = f'{letter}.image.'
            images = {key.removeprefix(prefix): inputs[key] for key in inputs if prefix in key}
            task = about['observations'][letter]['task']
            return Observation(images, inputs[f'{letter}.state'], task)

        info = inspect_checkpoint(folder / 'checkpoint')
        return SimpleNamespace(
            info=info,
            processor=Pi05Processor(info),
            inputs=inputs,
            expected=load_file(folder / 'expected.safetensors'),
            observation=observation,
            about=about,
        )

    cases = {name: read(name) for name in ('pi05_lerobot', 'pi05_openpi_format')}
    return cases.__getitem__


@pytest.fixture(scope='session')
def golden_language():
    """Observation letter -> (prompt, token ids) of the language cases."""
    folder = GOLDEN / 'pi05_language'
    inputs = load_file(folder / 'inputs.safetensors')
    about = json.loads((folder / 'case.json').read_text())

    def read(letter):
        ids = inputs[f'{letter}.tokens'][inputs[f'{letter}.token_mask']]
        return about['observations'][letter]['prompt'], ids.tolist()

    return read

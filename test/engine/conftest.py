"""A tiny real checkpoint and observations to run the engine with."""

from pathlib import Path

import numpy as np
import pytest

from oxygen_ros.policy import Policy
from oxygen_ros.types import Observation

CHECKPOINT = Path(__file__).parents[1] / 'golden' / 'pi05_lerobot' / 'checkpoint'


@pytest.fixture(scope='session')
def make_policy():
    """Policy of the golden LeRobot checkpoint; keywords are PolicyOptions."""

    def make(clock=None, **options):
        options = {'max_rows': 6, 'max_new_tokens': 24, 'max_prompt_tokens': 16, **options}
        keywords = {} if clock is None else {'clock': clock}
        return Policy.from_checkpoint(CHECKPOINT, **keywords, **options)

    return make


@pytest.fixture(scope='session')
def observation():
    """Frame number -> an observation; `without` leaves cameras out."""

    def make(number=0, without=(), instruction=None):
        random = np.random.default_rng(number)
        cameras = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
        words = 'pick up the red cup ' + 'very ' * (3 * number) + 'slowly'
        return Observation(
            images={
                name: random.integers(0, 256, (56, 56, 3), dtype=np.uint8)
                for name in cameras
                if name not in without
            },
            state=random.uniform(-0.5, 0.5, 8).astype(np.float32),
            instruction=instruction or words,
            stamp_ns=1_000_000 * (number + 1),
        )

    return make

"""A tiny real checkpoint and observations to run the engine with."""

from pathlib import Path

import numpy as np
import pytest

from oxygen_ros.policy import Policy
from oxygen_ros.types import LanguageRequest, Observation

CHECKPOINT = Path(__file__).parents[1] / 'golden' / 'pi05_lerobot' / 'checkpoint'
MODES = ('isolated', 'shared_kv', 'continuous')


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


def ask(name, prompt='', tokens=8, **fields):
    """A language request."""
    return LanguageRequest(name, prompt=prompt, max_tokens=tokens, **fields)


def drain(policy):
    """All outputs until nothing is pending, the budget refilled whenever it is spent."""
    outputs = []
    while policy.engine.scheduler.live or not policy.idle:
        if policy.idle:
            policy.grant()
        outputs += policy.step()
        policy.engine.check_integrity()
    return outputs


def answers(outputs):
    """Request id -> its token ids, ends without a token left out."""
    tokens = {}
    for delta in outputs:
        if hasattr(delta, 'token_id'):
            tokens.setdefault(delta.request_id, [])
            if delta.token_id >= 0:
                assert delta.index == len(tokens[delta.request_id])
                tokens[delta.request_id].append(delta.token_id)
    return tokens

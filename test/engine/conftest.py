"""A tiny real checkpoint and observations to run the engine with."""

import pytest
from families import FAMILIES, observe

from oxygen_ros.policy import Policy


@pytest.fixture(scope='session')
def family(request):
    """pi0.5, where a test is not parametrised over more by name."""
    return FAMILIES[getattr(request, 'param', 'pi05')]


@pytest.fixture(scope='session')
def make_policy(family):
    """Policy of the family's golden checkpoint; keywords are PolicyOptions."""

    def make(clock=None, **options):
        options = {
            'max_rows': 6,
            'max_new_tokens': 24,
            'max_prompt_tokens': 16,
            **family.options,
            **options,
        }
        keywords = {} if clock is None else {'clock': clock}
        return Policy.from_checkpoint(family.checkpoint, **keywords, **options)

    return make


@pytest.fixture(scope='session')
def observation(family):
    """Frame number -> an observation; `without` leaves cameras out, by place."""

    def make(number=0, without=(), instruction=None):
        return observe(family, number, without, instruction)

    return make

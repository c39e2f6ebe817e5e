"""How a model is run: one word that users choose, and what it means for layers and shapes."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from oxygen_ros.models.base import FastLayers, VLAModel
from oxygen_ros.types import OxygenError

Made = TypeVar('Made')
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Execution:
    """layers: see FastLayers. captured: fixed shapes, as CUDA graphs where there is CUDA.

    otherwise: name of the way that is taken where this one fails.
    """

    name: str
    layers: str
    captured: bool = False
    otherwise: str = 'eager'

    def apply(self, model: VLAModel) -> None:
        """Choose the model's layers; a family that has only plain ones keeps them."""
        if isinstance(model, FastLayers):
            model.use_layers(self.layers)


EAGER = Execution('eager', 'plain')  # the reference
EXECUTIONS = {
    way.name: way
    for way in (
        EAGER,
        Execution('fused', 'fused'),
        Execution('compiled', 'compiled'),
        Execution('graphs', 'fused', captured=True),
        Execution('compiled_graphs', 'all_compiled', captured=True, otherwise='graphs'),
    )
}
NAMES = ('auto', *EXECUTIONS)


def choose(name: str, device: torch.device) -> Execution:
    """The way of that name; 'auto' is 'graphs' on a GPU, 'fused' elsewhere. Raises OxygenError."""
    if name == 'auto':
        return EXECUTIONS['graphs' if device.type == 'cuda' else 'fused']
    if name not in EXECUTIONS:
        raise OxygenError(f'execution is {name!r}: allowed are {", ".join(NAMES)}')
    return EXECUTIONS[name]


def start(make: Callable[[Execution], Made], way: Execution) -> tuple[Made, Execution, str]:
    """make(way), or in a plainer way if that fails -> what it made, that way, and why.

    Whatever a failed make() allocated is freed before the next, if nobody else holds it.
    Raises OxygenError where eager fails too, and lets those of make() pass.
    """
    failures: list[str] = []
    while True:
        try:
            return make(way), way, '; '.join(failures)
        except OxygenError:
            raise
        except Exception as error:  # whatever a compiler or a capture may raise
            failures.append(f'{way.name} failed: {reason_of(error)}')
            if way is EAGER:
                why = '; '.join(reversed(failures))
                raise OxygenError(f'the model failed in its first frame: {why}') from error
            text = "execution '%s' failed, now '%s': %s"
            _log.warning(text, way.name, way.otherwise, reason_of(error), exc_info=True)
            _forget_frames(error)
        # Only here nothing of the failure is alive: in the block above its traceback was.
        gc.collect()  # a runner and its captured functions know each other
        torch.cuda.empty_cache()
        way = EXECUTIONS[way.otherwise]


def reason_of(error: BaseException) -> str:
    """In one line what was raised, and what was being handled when it was.

    The end of a CUDA capture raises an error of its own over the one that spoiled it.
    """
    last, *earlier = (_first_line(each) for each in _chain(error))
    return last + ''.join(f', after {line}' for line in dict.fromkeys(earlier))


def _first_line(error: BaseException) -> str:
    line = str(error).strip().partition('\n')[0]
    return f'{type(error).__name__}: {line}' if line else type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that led to it, latest first."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _forget_frames(error: BaseException) -> None:
    """Local variables of all that failed: whoever keeps the log's record keeps the traceback."""
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)


def compilations() -> int:
    """Graphs that torch.compile has made in this process: must not grow once a policy is ready."""
    return torch._dynamo.utils.counters['stats']['unique_graphs']

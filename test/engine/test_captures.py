"""Captured functions: what a replay must give, and what becomes of captures that do not."""

import logging
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from families import FAMILIES, observe
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oxygen_ros.engine import captures, engine
from oxygen_ros.engine.captures import Captures
from oxygen_ros.engine.execution import EAGER, EXECUTIONS, start
from oxygen_ros.policy import Policy
from oxygen_ros.types import LanguageRequest, OxygenError

PI05 = next(iter(FAMILIES.values()))


class Tape(TorchDispatchMode):
    """A CUDA graph as a CPU can have it: the same operations again, on the same tensors."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError('operation not permitted when stream is capturing')
        outputs = operation(*args, **(kwargs or {}))
        self.steps.append((operation, args, kwargs or {}, outputs))
        return outputs

    @torch.no_grad()
    def replay(self):
        for operation, args, kwargs, outputs in self.steps:
            for old, new in zip(
                tree_leaves(outputs), tree_leaves(operation(*args, **kwargs)), strict=True
            ):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record(function, inputs):
    function(*inputs)
    with Tape() as tape:
        outputs = function(*inputs)
    return tape.replay, outputs


def record_nothing(function, inputs):
    return lambda: None, function(*inputs)


def record_first_outputs(function, inputs):
    outputs = function(*inputs)
    first = [output.clone() for output in outputs]
    return lambda: [own.copy_(old) for own, old in zip(outputs, first, strict=True)], outputs


def record_other_inputs(function, inputs):
    return record(function, tuple(tensor.clone() for tensor in inputs))


def record_fails_in_its_end(function, inputs):
    try:
        function(*inputs)
        raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20 MiB')
    finally:
        raise RuntimeError('operation failed due to a previous error during capture')


@pytest.fixture
def recorded_by(monkeypatch):
    """Let captures on the CPU be made by this function."""

    def use(recorder):
        monkeypatch.setattr(captures, 'recorder', lambda device: recorder)

    return use


def load(way, **options):
    return Policy.from_checkpoint(PI05.checkpoint, execution=way, **options)


def play(policy):
    chunks, words = [], []
    for number, without in enumerate([(), (1,), (0, 2), ()]):
        asked = [LanguageRequest(str(number), prompt='go ' * number, max_tokens=5)]
        chunks.append(policy.act(observe(PI05, number, without), requests=asked).actions.copy())
        words += policy.step()
    words += policy.stream()
    return chunks, [(word.request_id, word.token_id) for word in words]


def test_recorded_operations_answer_like_the_functions(recorded_by):
    plain = play(load('graphs'))
    recorded_by(record)
    policy = load('graphs')
    assert policy.stats.execution == 'graphs', policy.stats.fallback
    chunks, words = play(policy)
    assert all((a == b).all() for a, b in zip(chunks, plain[0], strict=True))
    assert words == plain[1]


def test_a_capture_that_asks_the_host_fails(recorded_by):
    recorded_by(record)
    with pytest.raises(RuntimeError, match='not permitted'):
        Captures(torch.device('cpu')).add('sum', lambda x: (x * x.sum().item(),), *twice())


def twice():
    return (torch.ones(4),), (torch.arange(4.0),)


@pytest.mark.parametrize('bad', [record_nothing, record_first_outputs, record_other_inputs])
def test_a_capture_that_does_not_repeat_is_refused(recorded_by, bad):
    recorded_by(record)
    Captures(torch.device('cpu')).add('square', lambda x: (x * x, x.argmax()), *twice())
    recorded_by(bad)
    with pytest.raises(RuntimeError, match='the capture of square does not repeat'):
        Captures(torch.device('cpu')).add('square', lambda x: (x * x, x.argmax()), *twice())


def test_a_capture_that_leaves_out_what_it_should_write_is_refused(recorded_by):
    """As one whose keys and values were written outside of it."""
    memory = torch.zeros(4)

    def function(x):
        return (memory.copy_(x) * 2,)

    def record_output_alone(function, inputs):
        outputs = function(*inputs)
        return lambda: outputs[0].copy_(2 * inputs[0]), outputs

    recorded_by(record)
    Captures(torch.device('cpu')).add('keep', function, *twice(), (memory,))
    recorded_by(record_output_alone)
    with pytest.raises(RuntimeError, match='does not repeat'):
        Captures(torch.device('cpu')).add('keep', function, *twice(), (memory,))


def test_stale_captures_make_a_policy_fall_back(recorded_by):
    wanted = play(load('eager'))
    recorded_by(record_first_outputs)
    policy = load('graphs')
    assert policy.stats.execution == 'eager'
    assert policy.stats.fallback.startswith('graphs failed: ')
    assert 'does not repeat what it recorded' in policy.stats.fallback
    chunks, words = play(policy)
    assert all((a == b).all() for a, b in zip(chunks, wanted[0], strict=True))
    assert words == wanted[1]


# -- what is tried instead


def test_a_failed_engine_is_gone_before_the_next_is_made(recorded_by, monkeypatch):
    """Its pool in particular: a capture that failed for want of memory must not keep it."""
    pools, alive = [], []

    class Watched(engine.KVPool):
        def __init__(self, *given):
            alive.append(sum(pool() is not None for pool in pools))
            super().__init__(*given)
            pools.append(weakref.ref(self))

    monkeypatch.setattr(engine, 'KVPool', Watched)
    recorded_by(record_fails_in_its_end)
    policy = load('graphs')
    assert policy.stats.execution == 'eager' and alive == [0, 0]


def test_a_policy_lets_go_of_an_engine_whose_first_frame_failed(monkeypatch):
    pools, warm_up = [], Policy._warm_up

    def fail_once(self):
        pools.append(weakref.ref(self.engine.pool))
        if len(pools) == 1:
            raise RuntimeError('no kernel for this')
        assert pools[0]() is None
        warm_up(self)

    monkeypatch.setattr(Policy, '_warm_up', fail_once)
    assert load('fused').stats.fallback == 'fused failed: RuntimeError: no kernel for this'
    assert len(pools) == 2


def test_the_first_cause_is_told(recorded_by, caplog):
    recorded_by(record_fails_in_its_end)
    why = load('graphs').stats.fallback
    assert why == (
        'graphs failed: RuntimeError: operation failed due to a previous error during capture, '
        'after OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB'
    )
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert said.exc_info is not None and 'CUDA out of memory' in said.getMessage()


def test_compiled_graphs_become_graphs_and_then_eager():
    tried = []

    def make(way):
        tried.append(way.name)
        if way is not EAGER:
            raise ValueError(f'not {way.name}')
        return 'made'

    made, way, why = start(make, EXECUTIONS['compiled_graphs'])
    assert tried == ['compiled_graphs', 'graphs', 'eager'] and made == 'made' and way is EAGER
    assert why == (
        'compiled_graphs failed: ValueError: not compiled_graphs; '
        'graphs failed: ValueError: not graphs'
    )


def test_where_eager_fails_as_well_all_reasons_are_told():
    def make(way):
        raise KeyError(way.name)

    with pytest.raises(OxygenError, match="first frame: eager failed.*'eager'; graphs failed"):
        start(make, EXECUTIONS['graphs'])


def test_what_a_user_can_mend_is_no_reason_to_fall_back():
    def make(way):
        raise OxygenError('too many rows')

    with pytest.raises(OxygenError, match='too many rows'):
        start(make, EXECUTIONS['graphs'])


# -- the border to torch.cuda, where there is no GPU


class Cuda:
    """What captures use of torch.cuda; says which device and stream a function ran on."""

    def __init__(self):
        self.device_now, self.stream_now = torch.device('cuda:0'), 'default'
        self.captured, self.replayed = [], []

    def Stream(self, device):
        return SimpleNamespace(device=device, wait_stream=lambda other: None)

    def current_stream(self, device):
        return SimpleNamespace(wait_stream=lambda other: None)

    def graph_pool_handle(self):
        return object()

    def CUDAGraph(self):
        return SimpleNamespace(replay=lambda: None)

    @contextmanager
    def device(self, device):
        before, self.device_now = self.device_now, device
        try:
            yield
        finally:
            self.device_now = before

    @contextmanager
    def stream(self, stream):
        before, self.stream_now = self.stream_now, stream
        try:
            yield
        finally:
            self.stream_now = before

    @contextmanager
    def graph(self, graph, pool=None, stream=None):
        """As torch's: a capture that fails leaves its stream the current one."""
        before, self.stream_now = self.stream_now, stream
        self.captured.append((self.device_now, stream, pool))
        yield
        self.stream_now = before


@pytest.fixture
def cuda(monkeypatch):
    fake = Cuda()
    for name in (name for name in dir(Cuda) if not name.startswith('_')):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


def test_everything_is_captured_on_one_stream_of_its_own_device(cuda):
    second = torch.device('cuda:1')
    make, ran_on = captures.recorder(second), []
    for _ in range(2):
        make(lambda: ran_on.append((cuda.device_now, cuda.stream_now)) or (), ())
    (first, again) = cuda.captured
    assert first == again and first[0] == second and first[1].device == second
    assert all(device == second and stream is first[1] for device, stream in ran_on)
    assert len(ran_on) == 2 * 3, 'two warm-ups and the capture'
    assert (cuda.device_now, cuda.stream_now) == (torch.device('cuda:0'), 'default')


def test_a_capture_that_fails_leaves_no_stream_behind(cuda):
    with pytest.raises(ZeroDivisionError):
        captures.recorder(torch.device('cuda:1'))(lambda: 1 / 0 if cuda.captured else (), ())
    assert (cuda.device_now, cuda.stream_now) == (torch.device('cuda:0'), 'default')


def test_a_cpu_has_nothing_to_capture():
    assert captures.recorder(torch.device('cpu')) is None

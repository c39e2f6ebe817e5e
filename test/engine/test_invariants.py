"""Design invariants 1, 2, 3, 6, 7 and 8, each on a tiny real model of each family."""

import numpy as np
import pytest
import torch
from asking import MODES, answers, ask, drain
from families import WAYS
from torch.utils._python_dispatch import TorchDispatchMode

from oxygen_ros.engine.scheduler import Decode
from oxygen_ros.types import ActionChunk, FrameDropped, OxygenError, Reason, TokenDelta

pytestmark = pytest.mark.parametrize('family', WAYS, indirect=True, scope='session')

# -- 1. one prefill per frame


@pytest.mark.parametrize(
    ('mode', 'per_frame'), [('isolated', 4), ('shared_kv', 1), ('continuous', 1)]
)
def test_prefills_per_frame(make_policy, observation, mode, per_frame):
    policy = make_policy(mode=mode, budget='unlimited')
    policy.act(observation(), requests=[ask('a'), ask('b', 'go'), ask('c')])
    drain(policy)
    assert policy.stats.prefills == per_frame


def test_absent_cameras_are_not_encoded(family, make_policy, observation):
    policy = make_policy()
    seen = []
    family.count_encoded(policy.engine.model, seen)
    policy.act(observation(without=(1,)))
    policy.act(observation(1))
    assert seen == [2, 3]


# -- 2. the action task comes first


def test_a_frame_goes_before_all_pending_words(make_policy, observation):
    policy = make_policy(budget='unlimited')
    policy.act(observation(0), requests=[ask('a', tokens=20), ask('b', tokens=20)])
    for _ in range(4):
        policy.step()
    policy.observe(observation(1))
    outputs = policy.step()
    assert [type(output) for output in outputs] == [ActionChunk]
    assert outputs[0].frame == 1
    assert any(isinstance(output, TokenDelta) for output in policy.step())


def test_a_chunk_is_returned_before_its_own_frames_words(make_policy, observation):
    policy = make_policy(budget='unlimited')
    policy.submit(ask('a'))
    policy.observe(observation())
    assert [type(output) for output in policy.step()] == [ActionChunk]
    assert policy.stats.tokens == 0


# -- 3. pending language stays where it is


class PoolWrites(TorchDispatchMode):
    """Counts the elements that any operator writes into the pool's memory."""

    def __init__(self, pool):
        super().__init__()
        self.storages = {t.untyped_storage().data_ptr() for t in [*pool.keys, *pool.values]}
        self.written = []

    def is_pool(self, tensor):
        return tensor.untyped_storage().data_ptr() in self.storages

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        target = args[0] if func._schema.is_mutable and args else None
        if isinstance(target, torch.Tensor) and self.is_pool(target):
            source = args[2] if func.__name__.startswith('index_put') else args[1]
            self.written.append((func.__name__, source.numel()))
        return func(*args, **(kwargs or {}))


def test_no_kv_moves_between_frames(make_policy, observation):
    """Six frames of staggered requests: decode steps write one token a row and nothing else."""
    policy = make_policy(budget=2)
    spec, engine = policy.engine.model.spec, policy.engine
    decode, widths = engine.runner.decode, []

    def watched(plan: Decode):
        width = max(request.row for request in plan.requests) + 1
        with PoolWrites(engine.pool) as writes:
            tokens = decode(plan)
        assert len(writes.written) == 2 * spec.layers
        per_row = spec.kv_heads * spec.head_dim
        assert {count for _, count in writes.written} == {width * per_row}
        widths.append(width)
        return tokens

    engine.runner.decode = watched
    for number in range(6):
        policy.act(observation(number), requests=[ask(f'r{number}', 'go')])
        while not policy.idle:
            policy.step()
    drain(policy)
    assert max(widths) >= 3
    assert policy.stats.kv_bytes_copied_between_frames == 0
    assert policy.stats.forks == 0


def test_a_fork_is_counted_apart(make_policy, observation):
    policy = make_policy()
    policy.act(observation(), requests=[ask('a'), ask('b'), ask('c')])
    prefix = policy.engine.scheduler.live[0].frame.prefilled.length
    drain(policy)
    stats = policy.stats
    assert stats.forks == 2
    assert stats.fork_bytes == 2 * prefix * policy.engine.pool.slot_bytes
    assert stats.kv_bytes_copied_between_frames == 0


def test_later_frames_do_not_touch_what_a_pending_row_reads(make_policy, observation):
    policy = make_policy(budget=1)
    policy.act(observation(0), requests=[ask('a', tokens=20)])
    for _ in range(3):
        policy.step()
    (state,) = policy.engine.scheduler.live
    before = [key[state.row, :, : state.length].clone() for key in policy.engine.pool.keys]
    for number in range(1, 5):
        policy.act(observation(number))
    for key, kept in zip(policy.engine.pool.keys, before, strict=True):
        assert torch.equal(key[state.row, :, : kept.shape[1]], kept)


# -- 6. bounded


def test_what_does_not_fit_is_refused_with_a_reason(make_policy, observation):
    policy = make_policy(max_rows=2, max_queue=2)
    for name in 'abc':
        policy.submit(ask(name))
    policy.submit(ask('long', tokens=25))
    policy.submit(ask('wordy', 'go ' * 40))
    refused = {d.request_id: d for d in policy.step()}
    assert set(refused) == {'c', 'long', 'wordy'}
    assert all(d.final and d.reason is Reason.REFUSED for d in refused.values())
    assert 'max_queue' in refused['c'].text
    assert 'max_new_tokens' in refused['long'].text
    assert 'max_prompt_tokens' in refused['wordy'].text


def test_requests_beyond_the_rows_wait_for_a_later_frame(make_policy, observation):
    policy = make_policy(max_rows=2, budget='unlimited')
    policy.act(observation(0), requests=[ask('a', priority=0), ask('b'), ask('c', priority=1)])
    first = drain(policy)
    assert {d.request_id for d in first} == {'c', 'a'}, 'priority first, then arrival'
    policy.act(observation(1))
    assert {(d.request_id, d.frame) for d in drain(policy)} == {('b', 1)}


def test_a_pool_beyond_the_limit_is_refused_with_the_numbers(make_policy):
    with pytest.raises(OxygenError, match=r'need \d+ MB, the limit is 1 MB.*max_kv_mb'):
        make_policy(max_rows=64, max_kv_mb=1)


def test_memory_does_not_grow_with_frames(make_policy, observation):
    policy = make_policy()
    addresses = [key.data_ptr() for key in policy.engine.pool.keys]
    for number in range(30):
        policy.act(observation(number % 3), requests=[ask(f'r{number}', tokens=3)])
        while not policy.idle:
            policy.step()
    drain(policy)
    assert [key.data_ptr() for key in policy.engine.pool.keys] == addresses
    assert policy.stats.kv_bytes_in_use == 0
    assert not policy.engine.runner.sampler._generators
    assert not policy._words


# -- 7. one request cannot hurt another


def poison(policy, name):
    """Put a NaN where a pending request reads."""
    (state,) = [s for s in policy.engine.scheduler.live if s.id == name]
    policy.engine.pool.values[0][state.row, :, state.length - 1] = float('nan')


@pytest.mark.parametrize('mode', MODES)
def test_nan_ends_one_request_alone(make_policy, observation, mode):
    requests = [ask('a', 'go', 10), ask('b', 'what is it', 10), ask('c', 'go', 10)]
    clean = make_policy(mode=mode, budget='unlimited')
    clean.act(observation(), requests=requests)
    given = drain(clean)
    expected, whole = answers(given), {d.request_id: d.reason for d in given if d.final}

    policy = make_policy(mode=mode, budget='unlimited')
    policy.act(observation(), requests=requests)
    outputs = []
    while not any(s.id == 'b' and s.tokens for s in policy.engine.scheduler.live):
        outputs += policy.step()
    poison(policy, 'b')
    outputs += drain(policy)
    ends = {d.request_id: d.reason for d in outputs if d.final}
    assert ends['b'] is Reason.FAILED
    assert ends['a'] is whole['a'] and ends['c'] is whole['c']
    assert not {Reason.FAILED, Reason.REFUSED} & set(whole.values())
    assert answers(outputs)['a'] == expected['a']
    assert answers(outputs)['c'] == expected['c']

    # whoever gets the row next is not hurt either
    policy.act(observation(), requests=[ask(name, 'go', 10) for name in 'defghi'])
    later = answers(drain(policy))
    assert all(tokens == expected['a'] for tokens in later.values()) and len(later) == 6


def test_a_bad_request_among_good_ones(make_policy, observation):
    policy = make_policy(budget='unlimited')
    bad = [
        ask('n', temperature=float('nan')),
        ask('m', tokens=-1),
        ask('p', top_p=0.0),
        ask('d', deadline_ns=-5),
        ask(''),
        ask('good'),
    ]
    policy.act(observation(), requests=[ask('good'), *bad])
    outputs = drain(policy)
    refused = [d for d in outputs if d.reason is Reason.REFUSED]
    assert [d.request_id for d in refused] == ['n', 'm', 'p', 'd', '', 'good']
    words = ['temperature', 'max_tokens', 'top_p', 'deadline', 'id', 'use']
    for word, delta in zip(words, refused, strict=True):
        assert word in delta.text
    assert len(answers(outputs)['good']) == 8
    assert policy.stats.requests_ended == {'refused': 6, 'length': 1}


def test_actions_that_are_not_finite_are_not_handed_out(family, make_policy, observation):
    policy = make_policy()
    spec = policy.engine.model.spec
    noise = np.full((spec.horizon, spec.action_dim), np.nan, np.float32)
    with family.spoiled_actions(policy.engine.model):
        with pytest.raises(OxygenError, match='not finite'):
            policy.act(observation(), noise)
        policy.observe(observation(), noise)
        (dropped,) = policy.step()
    assert isinstance(dropped, FrameDropped) and dropped.stamp_ns == observation().stamp_ns
    reference = make_policy().act(observation())
    np.testing.assert_array_equal(policy.act(observation()).actions, reference.actions)


# -- 8. every output names its source


def test_outputs_name_their_source(make_policy, observation):
    ticks = iter(range(10**9, 2 * 10**9))
    policy = make_policy(clock=lambda: next(ticks), budget=1)
    chunks = [policy.act(observation(n), requests=[ask(f'r{n}')]) for n in range(3)]
    deltas = drain(policy)
    for number, chunk in enumerate(chunks):
        assert (chunk.frame, chunk.stamp_ns) == (number, observation(number).stamp_ns)
        assert 10**9 <= chunk.began_ns < chunk.ended_ns
    for delta in deltas:
        number = int(delta.request_id[1:])
        assert (delta.frame, delta.stamp_ns) == (number, observation(number).stamp_ns)
        assert 10**9 <= delta.began_ns < delta.ended_ns
    assert [d.final for d in deltas if d.request_id == 'r2'] == [False] * 7 + [True]

"""Cancel, deadlines, frames that are replaced, sampling, and reset."""

import time

import numpy as np
import pytest
import torch
from asking import MODES, answers, ask, drain

from oxygen_ros.engine.budget import PREFILL, AutoBudget, Work
from oxygen_ros.engine.sampler import Sampler
from oxygen_ros.types import FrameDropped, LanguageRequest, Observation, OxygenError, Reason


def test_cancel_takes_effect_at_the_next_step(make_policy, observation):
    policy = make_policy(budget='unlimited')
    policy.act(observation(), requests=[ask('a', tokens=20), ask('b', tokens=20)])
    for _ in range(5):
        policy.step()
    assert policy.cancel('a') == 1
    assert policy.cancel('a') == 0, 'already ending'
    assert policy.cancel('unknown') == 0
    ended = [d for d in policy.step() if d.request_id == 'a']
    assert [(d.final, d.reason, d.token_id) for d in ended] == [(True, Reason.CANCELLED, -1)]
    rest = drain(policy)
    assert {d.request_id for d in rest} == {'b'} and rest[-1].reason is Reason.LENGTH


def test_cancel_all_frees_everything(make_policy, observation):
    policy = make_policy()
    policy.act(observation(), requests=[ask(name) for name in 'abc'])
    policy.submit(ask('queued'))
    assert policy.cancel() == 4
    assert {d.request_id for d in drain(policy)} == {'a', 'b', 'c', 'queued'}
    assert policy.stats.kv_bytes_in_use == 0 and policy.stats.queued == 0


@pytest.mark.parametrize('mode', MODES)
def test_deadlines_expire_queued_and_running_requests(make_policy, observation, mode):
    now = [0]
    policy = make_policy(clock=lambda: now[0], mode=mode, budget='unlimited')
    policy.submit(ask('never', deadline_ns=10))
    now[0] = 10
    (delta,) = policy.step()
    assert (delta.request_id, delta.reason, delta.frame) == ('never', Reason.EXPIRED, -1)
    policy.act(observation(), requests=[ask('late', tokens=20, deadline_ns=10), ask('fine')])
    policy.step()
    now[0] = 20
    outputs = drain(policy)
    ends = {d.request_id: d.reason for d in outputs if d.final}
    assert ends == {'late': Reason.EXPIRED, 'fine': Reason.LENGTH}
    assert policy.stats.requests_ended == {'expired': 2, 'length': 1}


def test_the_newest_frame_wins_and_the_other_is_reported(make_policy, observation):
    policy = make_policy()
    policy.observe(observation(0))
    policy.observe(observation(1))
    dropped, chunk = policy.step()
    assert isinstance(dropped, FrameDropped) and dropped.frame == 0
    assert 'replaced by frame 1' in dropped.problem
    assert chunk.frame == 1
    assert policy.stats.frames == 2 and policy.stats.chunks == 1


def test_a_frame_that_cannot_be_used_says_what_is_allowed(make_policy, observation):
    policy = make_policy()
    good = observation()
    wrong = Observation({'front': good.images['base_0_rgb']}, good.state, 'go', 1)
    with pytest.raises(OxygenError, match='front.*base_0_rgb'):
        policy.observe(wrong)
    assert policy.idle and policy.stats.frames == 0


def test_reset_forgets_frame_and_words(make_policy, observation):
    policy = make_policy()
    policy.act(observation(0), requests=[ask('a')])
    policy.observe(observation(1))
    policy.reset()
    outputs = drain(policy)
    assert [d.reason for d in outputs] == [Reason.CANCELLED]
    assert policy.stats.chunks == 1


def test_no_forward_for_a_token_nobody_reads(make_policy, observation):
    policy = make_policy(budget='unlimited')
    policy.act(observation(), requests=[ask('a', tokens=1), ask('b', tokens=4)])
    tokens = answers(drain(policy))
    assert {name: len(ids) for name, ids in tokens.items()} == {'a': 1, 'b': 4}
    assert policy.stats.decode_steps == 3


@pytest.mark.parametrize('mode', MODES)
def test_budget_limits_decode_steps_per_frame(make_policy, observation, mode):
    policy = make_policy(mode=mode, budget=3)
    policy.act(observation(0), requests=[ask('a', tokens=20)])
    for frames in (1, 2, 3):
        while not policy.idle:
            policy.step()
        assert policy.stats.decode_steps == 3 * frames
        policy.act(observation(frames))


def test_a_seed_gives_the_same_words_whoever_shares_the_batch(make_policy, observation):
    drawn = ask('s', tokens=12, temperature=1.5, top_p=0.9, seed=7)
    alone = make_policy()
    alone.act(observation(), requests=[drawn])
    expected = answers(drain(alone))['s']
    crowd = make_policy()
    others = [ask(f'o{i}', 'go', 12, temperature=2.0, seed=i) for i in range(4)]
    crowd.act(observation(), requests=[*others, drawn])
    tokens = answers(drain(crowd))
    assert tokens['s'] == expected
    assert len({tuple(ids) for ids in tokens.values()}) == 5


def test_sampling_follows_the_distribution():
    """Frequencies over many seeds against the exact probabilities, nucleus included."""
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).repeat(4000, 1)
    exact = torch.softmax(logits[0] / 0.7, -1)
    for top_p, kept in ((1.0, 4), (0.9, 2)):
        requests = [
            LanguageRequest(str(i), temperature=0.7, top_p=top_p, seed=i) for i in range(4000)
        ]
        tokens = Sampler().sample(logits, logits.max(dim=-1), range(len(requests)), requests)
        seen = np.bincount(tokens, minlength=4) / len(tokens)
        expected = exact.clone()
        expected[kept:] = 0
        np.testing.assert_allclose(seen, expected / expected.sum(), atol=0.03)


def test_greedy_rows_need_their_two_numbers_alone():
    best = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([7, 8, 9])
    requests = [ask('a'), ask('b')]
    assert Sampler().sample(None, best, [2, 0], requests) == [9, 7]


def test_logits_that_are_not_finite_are_told_apart():
    logits = torch.zeros(3, 5)
    logits[0, 3] = 1.0
    logits[1, 2] = float('nan')
    logits[2, 4] = float('inf')
    requests = [LanguageRequest(name) for name in 'abc']
    assert Sampler().sample(logits, logits.max(dim=-1), range(3), requests) == [3, None, None]


def test_an_admission_that_the_budget_holds_back_is_told_apart(make_policy, observation):
    policy = make_policy(budget='auto', mode='isolated')
    policy.submit(ask('a'))
    policy.act(observation())
    assert policy.stats.to_admit == policy.stats.rows_in_use == 1
    budget = policy.engine.scheduler.budget = AutoBudget()
    for ago_s in (60, 0):  # the next frame is due in a minute, a prefill takes two
        budget.frame_arrived(time.monotonic_ns() - ago_s * 10**9)
    budget.spend(Work(PREFILL, 0), 120 * 10**9)
    assert policy.idle and policy.step() == [] and policy.stats.to_admit == 1
    for _ in range(10):
        assert policy.idle
        policy.grant()
    (delta,) = policy.step()
    assert delta.request_id == 'a' and delta.index == 0 and policy.stats.to_admit == 0

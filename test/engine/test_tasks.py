"""Tasks that ask by themselves: how often, of which frame, and with how many pending."""

import pytest
from asking import answers, ask, drain

from oxygen_ros.tasks import TaskRule, TaskSchedule
from oxygen_ros.types import OxygenError, Reason


def test_every_n_frames_and_every_n_seconds():
    schedule = TaskSchedule(
        [
            TaskRule('subtask', every_frames=3, max_pending=99),
            TaskRule('memory', every_s=1.0, max_pending=99),
            TaskRule('conversation'),
        ]
    )
    asked = [[r.task for r in schedule.due(round(n * 0.4e9))] for n in range(7)]
    assert asked == [
        ['subtask', 'memory'],
        [],
        [],
        ['subtask', 'memory'],  # 1.2 s
        [],
        [],
        ['subtask', 'memory'],  # 2.4 s
    ]


def test_the_backlog_is_bounded_and_what_is_left_out_is_counted():
    """1 Hz with answers that take 3 s: two pending, the rest skipped."""
    schedule = TaskSchedule([TaskRule('subtask', every_s=1.0, max_pending=2)])
    asked = [r for n in range(5) for r in schedule.due(n * 10**9)]
    assert [r.request_id for r in asked] == ['subtask/0', 'subtask/1']
    assert schedule.skipped == {'subtask': 3}
    schedule.ended(ask('subtask/0', task='subtask'))  # a caller's, of the same name
    assert not schedule.due(4 * 10**9)
    schedule.ended(asked[0])
    assert [r.request_id for r in schedule.due(5 * 10**9)] == ['subtask/2']


def test_time_that_jumps_back_does_not_silence_a_task():
    schedule = TaskSchedule([TaskRule('memory', every_s=1.0, max_pending=9)])
    assert schedule.due(100 * 10**9)
    assert schedule.due(10 * 10**9)
    assert not schedule.due(10 * 10**9 + 1)


def test_two_rhythms_for_one_task_are_refused():
    with pytest.raises(OxygenError, match='every_frames is 2 and every_s is 1'):
        TaskRule('subtask', every_frames=2, every_s=1.0)


def test_the_policy_asks_each_due_frame_and_names_it(make_policy, observation):
    rule = TaskRule('subtask', prompt='go', every_frames=2, max_tokens=3, max_pending=2)
    policy = make_policy(tasks=(rule,), budget='unlimited')
    outputs = []
    for number in range(4):
        policy.act(observation(number))
        outputs += drain(policy)
    ends = [(d.request_id, d.task, d.frame) for d in outputs if d.final]
    assert ends == [('subtask/0', 'subtask', 0), ('subtask/1', 'subtask', 2)]
    assert policy.stats.tasks_skipped == {}


def test_the_tasks_prompt_serves_a_request_without_one(make_policy, observation):
    rule = TaskRule('subtask', prompt='open the drawer')
    policy = make_policy(tasks=(rule,))
    requests = [
        ask('own', 'open the drawer', task='conversation'),
        ask('rule', '', task='subtask'),
        ask('none', '', task='conversation'),
    ]
    policy.act(observation(), requests=requests)
    tokens = answers(drain(policy))
    assert tokens['own'] == tokens['rule'] != tokens['none']


def test_ids_of_tasks_that_ask_by_themselves_are_theirs_alone(make_policy, observation):
    """A caller's request neither takes such an id nor counts as the task's own answer."""
    rules = (
        TaskRule('subtask', every_frames=1, max_tokens=8),
        TaskRule('memory', prompt='and before?'),  # asks nothing by itself
    )
    policy = make_policy(tasks=rules, budget=1)
    theirs = [ask('subtask/0', 'mine'), ask('memory/0', 'mine too')]
    policy.act(observation(0), requests=theirs)
    policy.submit(theirs[0])  # while the task's own subtask/0 is pending
    policy.act(observation(1))
    outputs = drain(policy)
    refused = [d for d in outputs if d.reason is Reason.REFUSED]
    assert [d.request_id for d in refused] == ['subtask/0'] * 2
    assert "begins with 'subtask/'" in refused[0].text
    assert policy.stats.tasks_skipped == {'subtask': 1}  # the first is still pending
    assert {d.request_id for d in outputs} == {'subtask/0', 'memory/0'}

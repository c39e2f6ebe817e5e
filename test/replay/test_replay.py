"""Whole replays with a tiny random checkpoint: deterministic, on bag time, all accounted for."""

import json

import numpy as np
import pytest
from bags import (
    BASE,
    CANCEL,
    MS,
    REQUEST,
    STATE,
    T0,
    TASK,
    WRIST,
    compressed,
    image,
    joint_state,
    pixels,
    request,
    session,
    string,
    write_bag,
)

from oxygen_ros.demo.recording import write_recording
from oxygen_ros.policy import Policy
from oxygen_ros.types import Observation


def by_id(report):
    return {answer['id']: answer for answer in report['requests']}


def ended(answer, max_tokens):
    """The answer came to its own end: by its last word, or at its limit."""
    count = len(answer['tokens'])
    return answer['reason'] == 'stop' or (answer['reason'], count) == ('length', max_tokens)


def test_twice_the_same_bytes_from_either_storage(replay, tmp_path):
    found = []
    for storage in ('mcap', 'sqlite3', 'mcap'):
        path = tmp_path / f'{len(found)}' / 'rec'
        write_recording(path, seconds=0.6, seed=3, storage=storage)
        report = replay(path)
        found.append(replay.bytes)
    assert found[0] == found[1] == found[2]
    assert report['totals']['chunks'] == 18 and report['totals']['requests'] == 1
    assert report['counters'] == {
        'dropped': {}, 'events': {}, 'images_used': 36, 'images_waiting': 0, 'tasks_skipped': {},
    }  # fmt: skip


def test_chunks_are_those_of_the_policy_alone(replay, tmp_path, checkpoint):
    report = replay(write_bag(tmp_path / 'bag', session(frames=3)))
    policy = Policy.from_checkpoint(checkpoint, denoise_steps=2)
    state = np.linspace(-0.4, 0.4, 7).astype(np.float32)
    for k, frame in enumerate(report['frames']):
        stamp = T0 + (12 + 33 * k) * MS
        images = {'base_0_rgb': pixels(k), 'left_wrist_0_rgb': pixels(100 + k)}
        chunk = policy.act(Observation(images, state, 'pick up the cup', stamp))
        assert frame['stamp_ns'] == stamp and frame['frame'] == k
        assert frame['cameras'] == ['base_0_rgb', 'left_wrist_0_rgb']
        # the decimals of the report read back as the same float32
        assert np.array_equal(np.array(frame['actions'], np.float32), chunk.actions)


@pytest.mark.parametrize('mode', ['isolated', 'shared_kv'])
def test_same_answers_in_every_mode(replay, tmp_path, mode):
    asked = [(REQUEST, 5 + 33 * k, request(f'q{k}', max_tokens=8)) for k in range(3)]
    bag = write_bag(tmp_path / 'bag', session(frames=6, extra=asked))
    reports = [replay(bag), replay(bag, '--set', f'mode={mode}')]
    assert reports[0]['frames'] == reports[1]['frames']
    words = [[(a['id'], a['frame'], a['tokens']) for a in r['requests']] for r in reports]
    assert words[0] == words[1] and all(tokens for _, _, tokens in words[0])
    assert reports[1]['settings']['effective']['mode'] == mode


def test_language_runs_over_frames_within_the_budget_and_to_its_end(replay, tmp_path):
    asked = [(REQUEST, 5, request('long', max_tokens=30)), (REQUEST, 40, request('short'))]
    bag = write_bag(tmp_path / 'bag', session(frames=4, extra=asked))
    report = replay(bag, '--set', 'budget=2')
    answers = by_id(report)
    assert (answers['long']['frame'], answers['short']['frame']) == (0, 1)
    assert ended(answers['long'], 30) and len(answers['long']['tokens']) > 12
    assert ended(answers['short'], 6)
    assert report['totals']['rows_max'] == 2
    assert report['totals']['tokens'] == sum(len(a['tokens']) for a in answers.values())
    assert report['totals']['kv_bytes_copied_between_frames'] == 0
    assert '1 language requests outlived the bag' in replay.stderr


def test_a_pause_in_the_bag_gives_words_the_timer_s_budget(replay, tmp_path):
    late = [(STATE, 1000, joint_state(1000)), (BASE, 1000, image(1000))]
    lines = session(frames=1, extra=[(REQUEST, 5, request('q', max_tokens=12)), *late])
    bag = write_bag(tmp_path / 'bag', lines)
    report = replay(bag, '--set', 'budget=1', '--set', 'idle_step_period_ms=20')
    assert ended(by_id(report)['q'], 12)
    assert 'outlived' not in replay.stderr
    replay(bag, '--set', 'budget=1', '--set', 'idle_step_period_ms=2000')
    assert '1 language requests outlived the bag' in replay.stderr


def test_deadlines_are_judged_on_the_bag_s_time(replay, tmp_path):
    asked = [
        (REQUEST, 5, request('tight', max_tokens=50, deadline_ms=60)),
        (REQUEST, 5, request('loose', max_tokens=10, deadline_ms=5000)),
    ]
    report = replay(
        write_bag(tmp_path / 'bag', session(frames=6, extra=asked)), '--set', 'budget=2'
    )
    answers = by_id(report)
    assert answers['tight']['reason'] == 'expired' and 0 < len(answers['tight']['tokens']) < 50
    assert ended(answers['loose'], 10)


def test_cancel_and_refusals(replay, tmp_path):
    asked = [
        (REQUEST, 5, request('a', max_tokens=50)),
        (REQUEST, 6, request('a', max_tokens=4)),
        (REQUEST, 7, request('b', max_tokens=-1)),
        (REQUEST, 8, request('c', temperature=float('nan'))),
        (REQUEST, 9, request('d', task='poetry')),
        (REQUEST, 9, request('e', task='no topic')),
        (CANCEL, 50, string('a')),
    ]
    report = replay(write_bag(tmp_path / 'bag', session(frames=4, extra=asked)))
    first, second, *others = report['requests']
    assert first['reason'] == 'cancelled' and 0 < len(first['tokens']) < 50
    assert second['reason'] == 'refused' and 'a' in second['detail'] and not second['tokens']
    assert [answer['reason'] for answer in others] == ['refused'] * 3
    assert 'max_tokens is -1' in others[0]['detail'] and 'temperature' in others[1]['detail']
    assert 'conversation, memory, subtask' in others[2]['detail']
    assert report['counters']['dropped'] == {'bad_request': 1}
    assert any("'no topic'" in note for note in report['notes'])


def test_a_task_asks_every_other_frame_and_skips_when_answers_are_pending(replay, tmp_path):
    asked = [(REQUEST, 5, request('mine', task='subtask', max_tokens=3))]
    bag = write_bag(tmp_path / 'bag', session(frames=8, extra=asked))
    rule = [
        'tasks.subtask.prompt=what now?',
        'tasks.subtask.every_frames=2',
        'tasks.subtask.max_tokens=30',
    ]
    report = replay(bag, '--set', 'budget=1', *(f'--set={text}' for text in rule))
    answers = by_id(report)
    skipped = report['counters']['tasks_skipped']['subtask']
    own = [name for name in answers if name != 'mine']
    assert own == [f'subtask/{k}' for k in range(4 - skipped)] and 0 < skipped < 4
    assert (answers['subtask/0']['frame'], answers['subtask/0']['prompt']) == (0, 'what now?')
    assert answers['subtask/0']['time_ns'] == report['frames'][0]['time_ns']
    assert all(ended(answers[name], 30) for name in own)
    assert report['totals']['requests'] == len(answers)
    for frames, times in ((2, 4), (0, 0)):
        short = (f'--set=tasks.subtask.every_frames={frames}', '--set=tasks.subtask.max_tokens=2')
        report = replay(bag, '--set', 'budget=5', *short)
        assert [report['requests'][k]['frame'] for k in range(-times, 0)] == [0, 2, 4, 6][:times]
        assert len(report['requests']) == 1 + times


def test_request_after_the_last_frame_stays_open(replay, tmp_path):
    bag = write_bag(tmp_path / 'bag', session(frames=1, extra=[(REQUEST, 99, request('q'))]))
    report = replay(bag)
    assert report['requests'][0]['reason'] is None and report['requests'][0]['frame'] == -1
    assert report['totals']['requests_by_end'] == {'open': 1}


def test_every_bad_message_is_counted_and_the_rest_answered(replay, tmp_path):
    bad = [
        (BASE, 20, image(20, encoding='16UC1')),
        (BASE, 21, image(21, encoding='rgba8')),
        (WRIST, 22, compressed(22, text='16UC1; compressedDepth png')),
        (STATE, 23, joint_state(23, names=['elbow'])),
        (STATE, 24, b'\0\1\0\0'),
        (TASK, 25, string('  ')),
        (TASK, 26, string('x' * 10_001)),
        (BASE, 27, image(27, encoding='16UC1')),
    ]
    report = replay(write_bag(tmp_path / 'bag', session(frames=3, extra=bad)))
    assert report['totals']['chunks'] == 3
    assert report['counters']['dropped'] == {
        'bad_encoding': 2, 'bad_step': 1, 'bad_format': 1, 'missing_joints': 1, 'bad_message': 1,
        'empty_instruction': 1, 'long_instruction': 1,
    }  # fmt: skip
    notes = [note for note in report['notes'] if "'16UC1'" in note and note.startswith(BASE)]
    assert len(notes) == 1  # told once, counted twice


def test_a_long_instruction_is_shortened_and_said(replay, tmp_path):
    lines = session(frames=2, extra=[(TASK, 0.5, string('again and ' * 999))])
    report = replay(write_bag(tmp_path / 'bag', lines))
    assert report['totals']['chunks'] == 2 and report['totals']['truncated_instructions'] == 2


def test_looped_stamps_are_noticed_and_go_on(replay, tmp_path):
    lines = session(frames=3)
    for k in range(2):
        at = 200 + 33 * k
        lines += [
            (STATE, at, joint_state(10 + k)),
            (BASE, at, image(10 + 33 * k)),
            (STATE, at + 0.5, joint_state(at + 0.5)),
            (WRIST, at + 1, compressed(12 + 33 * k)),
        ]
    report = replay(write_bag(tmp_path / 'bag', lines))
    assert report['counters']['events'] == {'time_jump': 1}
    assert report['totals']['chunks'] == 5


@pytest.mark.parametrize('apart_s', [30 * 86_400, -5], ids=['sim_time', 'future'])
def test_c27_record_times_on_another_clock_than_the_stamps_change_nothing(
    replay, tmp_path, apart_s
):
    lines = session(frames=4, extra=[(REQUEST, 5, request('q'))])
    apart = [(topic, at_ms + apart_s * 1000, value) for topic, at_ms, value in lines]
    reports = [replay(write_bag(tmp_path / f'{k}', said)) for k, said in enumerate([lines, apart])]
    answers = [
        [{key: row[key] for key in row if key != 'time_ns'} for row in r['frames'] + r['requests']]
        for r in reports
    ]
    assert len(answers[0]) == 5 and answers[0] == answers[1]
    assert reports[1]['settings']['timeline'].startswith('record times of the bag')


def test_auto_budget_is_fixed_and_recorded(replay, tmp_path):
    report = replay(write_bag(tmp_path / 'bag', session(frames=1)), '--set', 'budget=auto')
    assert report['settings']['parameters']['budget'] == '5'
    assert any('5 steps per frame' in note for note in report['notes'])


def test_seed_changes_the_actions(replay, tmp_path):
    bag = write_bag(tmp_path / 'bag', session(frames=1))
    first = replay(bag)['frames'][0]['actions']
    second = replay(bag, '--set', 'seed=1')['frames'][0]['actions']
    assert np.isfinite(first).all() and first != second


def test_the_file_has_sorted_keys_and_one_row_a_line(replay, tmp_path):
    report = replay(write_bag(tmp_path / 'bag', session(frames=2)))
    text = replay.bytes.decode()
    assert list(report) == sorted(report)
    assert len(text.splitlines()) < 30
    row = next(line for line in text.splitlines() if '"frame": 1' in line).strip().rstrip(',')
    assert json.loads(row) == report['frames'][1]

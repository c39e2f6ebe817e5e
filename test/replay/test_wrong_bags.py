"""Recordings that are wrong: refused in words, or used as far as they go and marked as partial."""

import sys

import pytest
from bags import (
    BASE,
    STATE,
    TASK,
    WRIST,
    compressed,
    damage,
    image,
    joint_state,
    session,
    write_bag,
)

from oxygen_ros.demo.recording import write_recording
from oxygen_ros.replay import cli
from oxygen_ros.replay.evaluate import Evaluator
from oxygen_ros.replay.runner import Runner

OTHERS = ['panda_joint1', 'panda_joint2', 'panda_finger']


def without(*topics):
    return [line for line in session(frames=3) if line[0] not in topics]


@pytest.mark.parametrize(
    ('lines', 'words'),
    [
        (without(STATE), ['lacks the joint state: no topic joint_states', WRIST]),
        (without(BASE, WRIST), ['lacks camera base_0_rgb', 'cameras/base/image_raw', STATE]),
        (
            [*without(STATE), (STATE, 1, joint_state(1, names=OTHERS))],
            ['is of another robot', 'lacks shoulder_pan', 'it has panda_joint1', '--robot'],
        ),
    ],
    ids=['no joint states', 'no images', 'another robot'],
)
def test_a_bag_that_cannot_be_used_is_refused_before_weights_are_loaded(
    tmp_path, capsys, monkeypatch, checkpoint, lines, words
):
    def load(*_):
        raise AssertionError('loaded')

    monkeypatch.setattr(Evaluator, '_loaded', load)
    bag = write_bag(tmp_path / 'bag', sorted(lines, key=lambda line: line[1]))
    code = cli.main([str(bag), '--checkpoint', str(checkpoint), '--robot', 'demo'])
    text = capsys.readouterr().err
    assert code == 2 and len(text.splitlines()) == 1
    for word in words:
        assert word in text


def test_gaps_are_named_and_what_lies_around_them_is_answered(replay, tmp_path):
    lines = session(frames=3)
    for k in range(2):
        at = 3000 + 33 * k
        lines += [
            (STATE, at - 1, joint_state(at - 1)),
            (BASE, at, image(at)),
            (WRIST, at + 2, compressed(at + 2)),
        ]
    report = replay(write_bag(tmp_path / 'bag', lines))
    assert report['totals']['chunks'] == 5 and report['complete']
    rows = {row['topic']: row for row in report['inputs']}
    for topic in (BASE, WRIST):
        assert (rows[topic]['gaps'], rows[topic]['went_back']) == (1, 0)
    assert rows[BASE]['longest_gap_ms'] == 2924.0
    note = next(note for note in report['notes'] if note.startswith(BASE))
    assert 'longer than 500 ms' in note and '2.92 s' in note and '3.00 s into the bag' in note
    # rows of the chunks before the gap are due where nothing is recorded
    error = report['scores']['error']['elbow']
    assert 0 < error['count'] < 5 * report['settings']['model']['horizon']


def test_a_gap_in_the_joint_states_costs_the_frames_in_it(replay, tmp_path):
    lines = [line for line in session(frames=20) if line[0] != STATE or line[1] < 100]
    report = replay(write_bag(tmp_path / 'bag', lines))
    assert report['counters']['dropped']['stale_joint_state'] > 0
    assert 0 < report['totals']['chunks'] < 20 and report['complete']


def test_time_that_runs_backwards_is_named_and_ends_what_was_before(replay, tmp_path):
    lines = session(frames=3)
    for k in range(3):
        at = 200 + 33 * k
        lines += [
            (STATE, at, joint_state(20 + 33 * k)),
            (BASE, at, image(10 + 33 * k)),
            (WRIST, at + 1, compressed(12 + 33 * k)),
        ]
    report = replay(write_bag(tmp_path / 'bag', sorted(lines, key=lambda line: line[1])))
    assert report['counters']['events']['time_jump'] >= 1
    assert any('stamps go back 1 times' in note for note in report['notes'])
    seams = [frame['seam'] for frame in report['frames']]
    assert len(seams) >= 4 and seams.count(None) == 2  # none across the jump


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_record_times_that_run_backwards_are_named(replay, tmp_path, storage):
    """Such as of a recorder whose clock was set back: messages come sorted, so it is not seen."""
    lines = session(frames=3)
    again = [(topic, at + 5, value) for topic, at, value in session(frames=3) if topic != TASK]
    report = replay(write_bag(tmp_path / 'bag', [*lines, *again], storage))
    rows = {row['topic']: row['record_went_back'] for row in report['inputs']}
    assert rows[STATE] == rows[BASE] == rows[WRIST] == 1 and rows[TASK] == 0
    note = next(note for note in report['notes'] if note.startswith(BASE))
    assert 'record times go back 1 times, by up to 0.06 s' in note
    assert sum('record times go back' in note for note in report['notes']) == 3
    sound = replay(write_bag(tmp_path / 'sound', lines, storage))
    assert not any('record times' in note for note in sound['notes'])


@pytest.mark.parametrize('compress', ['storage', 'message', 'file'])
def test_zstd_gives_the_same_report(replay, tmp_path, compress):
    reports = [
        replay(write_bag(tmp_path / name / 'bag', session(frames=2), compress=how))
        for name, how in [('plain', ''), ('zstd', compress)]
    ]
    for report in reports:
        del report['notes']  # which name the path
    assert reports[0] == reports[1]


def test_a_bag_that_is_damaged_midway_gives_a_partial_report(replay, tmp_path):
    """Its index is sound, and a chunk behind the first frames is not."""
    path = write_recording(tmp_path / 'bag', seconds=1.5)
    whole = replay(path)
    file = path / 'bag.mcap'
    data = bytearray(file.read_bytes())
    at = len(data) * 6 // 10
    data[at : at + 2000] = b'\xff' * 2000
    file.write_bytes(data)
    report = replay(path, code=1)
    assert 'PARTIAL' in replay.stderr and 'truncated or damaged' in report['problem']
    count = report['totals']['chunks']
    assert not report['complete'] and 0 < count < whole['totals']['chunks']
    assert report['frames'] == whole['frames'][:count]


def test_damage_before_the_first_frame_leaves_nothing(tmp_path, capsys, checkpoint):
    path = write_bag(tmp_path / 'bag', session(frames=2))
    damage(path)
    out = tmp_path / 'report.json'
    code = cli.main(
        [str(path), '--checkpoint', str(checkpoint), '--robot', 'demo', '--json', str(out)]
    )
    assert code == 2 and 'damaged' in capsys.readouterr().err
    assert not out.exists()


def test_a_truncated_sqlite3_gives_a_partial_report(replay, tmp_path):
    path = write_bag(tmp_path / 'bag', session(frames=30), 'sqlite3')
    whole = replay(path)
    file = path / 'bag.db3'
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 6 // 10])
    report = replay(path, code=1)
    assert not report['complete'] and 'What is whole of it was read' in report['problem']
    count = report['totals']['chunks']
    assert 10 < count < 20
    assert report['frames'] == whole['frames'][:count]


def test_a_truncated_mcap_gives_a_partial_report(replay, tmp_path):
    path = write_recording(tmp_path / 'bag', seconds=1.5)
    whole = replay(path)
    file = path / 'bag.mcap'
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 6 // 10])
    report = replay(path, code=1)
    assert not report['complete'] and 'What is whole of it was read' in report['problem']
    count = report['totals']['chunks']
    assert 0 < count < whole['totals']['chunks']
    assert report['frames'] == whole['frames'][:count]


def test_interrupted_by_the_user_what_is_there_is_kept(replay, tmp_path, monkeypatch):
    feed = Runner.feed

    def feed_three_frames(runner, message):
        if len(runner.frames) == 3:
            raise KeyboardInterrupt
        feed(runner, message)

    monkeypatch.setattr(Runner, 'feed', feed_three_frames)
    report = replay(write_bag(tmp_path / 'bag', session(frames=5)), code=130)
    assert report['totals']['chunks'] == 3 and report['problem'].startswith('interrupted 0.08 s')


def test_images_that_cannot_be_used_give_a_report_that_says_so(replay, tmp_path):
    lines = [
        (t, ms, image(ms, encoding='16UC1') if t == BASE else value)
        for t, ms, value in session(frames=3)
    ]
    report = replay(write_bag(tmp_path / 'bag', lines), code=1)
    assert report['frames'] == [] and not report['complete']
    assert report['problem'].startswith('no frame was answered; dropped: 3 bad_encoding')
    assert report['scores']['error'] == {} and report['scores']['chunk_age_ms'] is None


def test_a_page_that_cannot_be_made_or_written_is_refused_before_the_work(
    tmp_path, capsys, monkeypatch, checkpoint
):
    def evaluate(*_):
        raise AssertionError('worked')

    monkeypatch.setattr(Evaluator, '__call__', evaluate)
    bag = write_bag(tmp_path / 'bag', session(frames=1))
    arguments = [str(bag), '--checkpoint', str(checkpoint), '--robot', 'demo', '--html']
    assert cli.main([*arguments, str(tmp_path / 'no' / 'page.html')]) == 2
    assert '--html' in (text := capsys.readouterr().err) and 'does not exist' in text
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    assert cli.main([*arguments, str(tmp_path / 'page.html')]) == 2
    text = capsys.readouterr().err
    assert 'pages need matplotlib' in text and 'python3-matplotlib' in text

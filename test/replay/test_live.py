"""A bag in real time through the real node: its own process, Fast DDS, /clock."""

import json
import shutil

import pytest
from bags import (
    BASE,
    KIND,
    REQUEST,
    STATE,
    TASK,
    WRIST,
    compressed,
    image,
    joint_state,
    request,
    session,
    string,
    write_bag,
)

from oxygen_ros.demo.recording import JOINTS
from oxygen_ros.replay import cli, evaluate

pytest.importorskip('rclpy', reason='the live timeline needs ROS 2')


FRAMES, PERIOD_MS = 8, 180


def slow_session():
    """Frames that can be answered one by one on a busy machine, joints well before the images."""
    lines = [(TASK, 0, string('pick up the cup')), (REQUEST, 600, request('q', max_tokens=5))]
    for k in range(FRAMES):
        at = 200 + k * PERIOD_MS
        lines += [
            (STATE, at - 100, joint_state(at - 100)),
            (BASE, at, image(at, seed=k)),
            (WRIST, at + 2, compressed(at + 2, seed=100 + k)),
        ]
    return sorted(lines, key=lambda line: line[1])


@pytest.fixture(scope='module')
def both(checkpoint, tmp_path_factory):
    """One bag on both timelines; the reports and the page of the live one."""
    folder = tmp_path_factory.mktemp('live')
    # under other names than the contract's: a namespace of the recording
    kinds = {'/arm' + topic: kind for topic, kind in KIND.items()}
    lines = [('/arm' + topic, at, value) for topic, at, value in slow_session()]
    bag = write_bag(folder / 'bag', lines, kinds=kinds)
    reports = []
    for timeline in ('bag', 'live'):
        out = folder / f'{timeline}.json'
        code = cli.main([
            str(bag), '--checkpoint', str(checkpoint), '--robot', 'demo', '--timeline', timeline,
            '--set', 'denoise_steps=2', '--set', 'cpu_threads=1', '--json', str(out),
            *(['--html', str(folder / 'live.html')] if timeline == 'live' else []),
        ])  # fmt: skip
        assert code == 0
        reports.append(json.loads(out.read_text()))
    return *reports, (folder / 'live.html').read_text()


def test_the_node_answers_the_bag_as_the_replay_does(both):
    replayed, live, _ = both
    assert live['complete'] and replayed['totals']['chunks'] == FRAMES
    # a machine that is busy may drop a frame, and never answers one otherwise
    assert FRAMES // 2 < live['totals']['chunks'] <= FRAMES
    there = {frame['stamp_ns']: frame['actions'] for frame in replayed['frames']}
    for frame in live['frames']:
        assert frame['actions'] == there[frame['stamp_ns']]
    (ours,), (theirs,) = live['requests'], replayed['requests']
    assert ours['reason'] == theirs['reason'] and ours['text']
    if ours['stamp_ns'] == theirs['stamp_ns']:
        assert ours['tokens'] == theirs['tokens']
    assert live['settings']['model'] == replayed['settings']['model']
    assert live['settings']['timeline'] != replayed['settings']['timeline']


def test_it_is_scored_and_measured_from_end_to_end(both):
    replayed, live, page = both
    chunks = live['totals']['chunks']
    assert set(live['scores']['error']) == set(replayed['scores']['error']) == set(JOINTS)
    assert live['scores']['streamed']['steps'] > chunks and live['scores']['seams']['count'] > 0
    measured = live['measured']
    assert measured['camera_to_chunk_ms']['count'] == chunks
    assert measured['camera_to_chunk_ms']['p50'] > 0 < measured['first_token_ms']['p50']
    assert measured['tok_per_s'] > 0 and live['scores']['language']['answers_done'] == 1
    assert '<svg' in page and 'data:image/jpeg' in page


def test_the_two_can_be_compared(both, tmp_path, capsys):
    paths = [tmp_path / 'a.json', tmp_path / 'b.json']
    for path, report in zip(paths, both[:2], strict=True):
        path.write_text(json.dumps(report))
    assert cli.main(['--compare', *map(str, paths)]) == 0
    assert 'timeline: record times of the bag' in capsys.readouterr().out


def test_a_node_that_fails_is_reported_with_its_words(tmp_path, checkpoint, capsys, monkeypatch):
    """What the checks before the load cannot see."""
    broken = tmp_path / 'broken'
    shutil.copytree(checkpoint, broken)
    tokenizer = next(broken.rglob('tokenizer.json'))
    tokenizer.write_text(tokenizer.read_text()[:-1000])
    monkeypatch.setattr(evaluate, 'preflight', lambda *_: [])
    bag = write_bag(tmp_path / 'bag', session(frames=1))
    code = cli.main(
        [str(bag), '--checkpoint', str(broken), '--robot', 'demo', '--timeline', 'live']
    )
    text = capsys.readouterr().err
    assert code == 2 and 'the node failed: ' in text and 'tokenizer' in text

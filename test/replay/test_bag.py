"""Reading recordings: both storages, in order, and every kind of damage named. Needs no rclpy."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from bags import (
    BASE,
    KIND,
    STATE,
    STORE,
    T0,
    TASK,
    damage,
    joint_state,
    session,
    string,
    write_bag,
)
from rosbags.typesys import get_types_from_msg

from oxygen_ros.replay.bag import REQUEST_TEXT, REQUEST_TYPE, Bag, Topic
from oxygen_ros.types import OxygenError

STORAGES = ['mcap', 'sqlite3']


def refusal(path, read=False):
    with pytest.raises(OxygenError) as caught, Bag(path) as bag:
        for _ in bag.messages([topic.name for topic in bag.topics]) if read else ():
            pass
    text = str(caught.value)
    assert str(path) in text and '\n' not in text
    return text


def test_the_request_type_is_the_package_s_own():
    text = (Path(__file__).parents[2] / 'msg' / 'LanguageRequest.msg').read_text()
    given = get_types_from_msg(text, REQUEST_TYPE)
    assert get_types_from_msg(REQUEST_TEXT, REQUEST_TYPE) == given


@pytest.mark.parametrize('storage', STORAGES)
def test_topics_and_order(tmp_path, storage):
    lines = session(frames=2)
    with Bag(write_bag(tmp_path / 'bag', lines[::-1], storage)) as bag:
        assert bag.count == len(lines) and bag.name == 'bag'
        assert bag.start_ns == T0 and bag.end_ns == T0 + 45_000_000
        assert Topic(STATE, KIND[STATE], 3) in bag.topics
        read = list(bag.messages([STATE, TASK]))
        times = [message.time_ns for message in read]
        assert times == sorted(times) and len(read) == 4
        assert read[0].value.data == 'pick up the cup'


@pytest.mark.parametrize(('storage', 'suffix'), [('mcap', '.mcap'), ('sqlite3', '.db3')])
def test_one_file_alone(tmp_path, storage, suffix):
    write_bag(tmp_path / 'bag', session(), storage)
    (tmp_path / 'bag' / 'metadata.yaml').unlink()
    text = refusal(tmp_path / 'bag')
    assert 'metadata.yaml' in text and f'bag{suffix} itself' in text
    with Bag(tmp_path / 'bag' / f'bag{suffix}') as bag:
        assert bag.count == len(session())


def test_bytes_that_are_no_message_are_handed_on_with_a_problem(tmp_path):
    lines = [(STATE, 0, b'\0\1\0\0junk'), (STATE, 1, joint_state(1)), (TASK, 2, b'')]
    with Bag(write_bag(tmp_path / 'bag', lines)) as bag:
        bad, good, empty = bag.messages([STATE, TASK])
    assert bad.value is None and '8 bytes are no sensor_msgs/msg/JointState' in bad.problem
    assert good.value is not None and good.problem == ''
    assert empty.value is None


def test_slack_behind_a_message_as_rclpy_writes_it(tmp_path):
    data = bytes(STORE.serialize_cdr(joint_state(1), KIND[STATE])) + b'\xcb\x7f\0\0\0\0\0\0'
    with Bag(write_bag(tmp_path / 'bag', [(STATE, 0, data)])) as bag:
        (message,) = bag.messages([STATE])
    assert message.problem == '' and message.value.position.tolist()[0] == -0.4


def test_missing(tmp_path):
    assert 'does not exist' in refusal(tmp_path / 'nowhere')


def test_folder_that_is_no_bag(tmp_path):
    (tmp_path / 'notes.txt').write_text('x')
    assert 'no rosbag2 folder' in refusal(tmp_path)


def test_file_that_is_no_bag(tmp_path):
    (tmp_path / 'notes.txt').write_text('x')
    assert 'give a rosbag2 folder, a .mcap or a .db3' in refusal(tmp_path / 'notes.txt')


@pytest.mark.parametrize('storage', STORAGES)
def test_empty(tmp_path, storage):
    path = write_bag(tmp_path / 'bag', [], storage, topics=[BASE, STATE])
    assert 'is empty: it has 2 topics and no messages' in refusal(path)


def cut(path, keep):
    """Leave only a part of a bag's mcap, as a power failure does."""
    file = path / f'{path.name}.mcap'
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    return file


@pytest.mark.parametrize('keep', [0.0, 0.002, 0.5])
def test_truncated_mcap(tmp_path, keep):
    path = write_bag(tmp_path / 'bag', session())  # all of it in one chunk
    file = cut(path, keep)
    assert 'truncated or damaged' in refusal(path)
    assert 'mcap recover' in refusal(file)


@pytest.mark.parametrize('compress', ['', 'storage'])
def test_what_is_whole_of_a_truncated_mcap_is_read_and_said(tmp_path, compress):
    lines = session(frames=2)
    path = write_bag(tmp_path / 'bag', lines, compress=compress)
    file = cut(path, 0.95)  # behind the chunk
    for given in (path, file):
        with Bag(given) as bag:
            assert f'What is whole of it was read: {len(lines)} messages' in bag.problem
            assert 'mcap recover' in bag.problem and bag.start_ns == T0
            assert Topic(STATE, KIND[STATE], 3) in bag.topics
            assert [m.time_ns for m in bag.messages([TASK])] == [T0]


@pytest.mark.parametrize('keep', [0.2, 0.6, 0.95])
def test_what_is_whole_of_a_truncated_sqlite3_is_read_and_said(tmp_path, keep):
    lines = session(frames=60)
    path = write_bag(tmp_path / 'bag', lines, 'sqlite3')
    topics = [STATE, TASK, BASE]
    with Bag(path) as bag:
        whole = [(m.topic, m.time_ns) for m in bag.messages(topics)]
    file = path / 'bag.db3'
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    for given in (path, file):
        with Bag(given) as bag:
            assert 'What is whole of it was read' in bag.problem and bag.start_ns == T0
            read = list(bag.messages(topics))
        assert all(m.value is not None for m in read)
        assert [(m.topic, m.time_ns) for m in read] == whole[: len(read)]
        assert 0.7 * keep < len(read) / len(whole) < keep


@pytest.mark.parametrize('keep', [0.0, 0.01])
def test_a_sqlite3_of_which_nothing_is_whole(tmp_path, keep):
    path = write_bag(tmp_path / 'bag', session(frames=60), 'sqlite3')
    file = path / 'bag.db3'
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * keep)])
    assert 'truncated or damaged' in refusal(path)


@pytest.mark.parametrize(
    ('storage', 'compress'),
    [('mcap', ''), ('mcap', 'storage'), ('mcap', 'file'), ('mcap', 'message'), ('sqlite3', '')],
)
def test_record_times_that_go_back_are_found(tmp_path, storage, compress):
    lines = [(STATE, at, joint_state(at)) for at in (0, 900, 100, 1000, 950)]
    lines += [(TASK, at, string('x' * (1 << 20))) for at in (0, 10, 10)]  # a chunk each
    with Bag(write_bag(tmp_path / 'bag', lines, storage, compress=compress)) as bag:
        assert bag.steps_back() == {STATE: (2, 800_000_000)}
    last = [(TASK, at, string('x' * (1 << 20))) for at in (0, 3000, 2000)]
    with Bag(write_bag(tmp_path / 'other', last, storage, compress=compress)) as bag:
        assert bag.steps_back() == {TASK: (1, 1_000_000_000)}


def test_record_times_that_go_back_in_what_is_left_of_a_bag(tmp_path):
    lines = [(STATE, at, joint_state(at)) for at in (0, 900, 100)]
    path = write_bag(tmp_path / 'bag', lines)
    with Bag(cut(path, 0.95)) as bag:
        assert bag.problem and bag.steps_back() == {STATE: (1, 800_000_000)}


@pytest.mark.parametrize(
    ('storage', 'compress'),
    [('mcap', 'storage'), ('mcap', 'message'), ('mcap', 'file'), ('sqlite3', 'message'),
     ('sqlite3', 'file')],
)  # fmt: skip
def test_zstd_in_every_place(tmp_path, storage, compress):
    lines = session(frames=2)
    with Bag(write_bag(tmp_path / 'bag', lines, storage, compress=compress)) as bag:
        read = list(bag.messages([STATE, TASK]))
        assert bag.count == len(lines) and bag.problem == ''
    assert all(message.value is not None for message in read) and len(read) == 4


def test_damage_behind_a_sound_index(tmp_path):
    path = write_bag(tmp_path / 'bag', session())
    damage(path)
    with Bag(path) as bag:
        assert bag.count == len(session())
    assert 'truncated or damaged' in refusal(path, read=True)


def test_damaged_database(tmp_path):
    path = write_bag(tmp_path / 'bag', session(frames=30), 'sqlite3')
    file = path / 'bag.db3'
    data = bytearray(file.read_bytes())
    data[len(data) // 4 : len(data) * 3 // 4] = b'\xff' * (len(data) // 2)
    file.write_bytes(data)
    with Bag(path) as bag:
        assert 'truncated or damaged' in bag.problem
        assert 0.1 < bag.count / len(session(frames=30)) < 0.26


def test_not_a_database(tmp_path):
    path = write_bag(tmp_path / 'bag', session(), 'sqlite3')
    (path / 'bag.db3').write_bytes(b'hello' * 1000)
    assert 'truncated or damaged' in refusal(path)
    with sqlite3.connect(path / 'other.db3') as database:
        database.execute('CREATE TABLE t (x)')
    assert 'truncated or damaged' in refusal(path / 'other.db3')


@pytest.mark.parametrize('text', ['', '[', 'a: 1', 'rosbag2_bagfile_information: {version: 99}'])
def test_broken_metadata(tmp_path, text):
    path = write_bag(tmp_path / 'bag', session())
    (path / 'metadata.yaml').write_text(text)
    refusal(path)


def test_file_named_by_the_metadata_is_gone(tmp_path):
    path = write_bag(tmp_path / 'bag', [(TASK, 0, string('x'))])
    shutil.move(path / 'bag.mcap', path / 'moved.mcap')
    assert 'bag.mcap' in refusal(path)

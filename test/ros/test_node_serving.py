"""The node as a robot and its user see it: another process, real topics."""

import json
import math
import time

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from ros_harness import JOINTS, TASKS, dropped, image, joint_state, jpeg, poll, stamp
from std_msgs.msg import String
from std_srvs.srv import Trigger

from oxygen_ros import msg
from oxygen_ros.ros import qos

LONG = 200


def ask(peer, request_id, **fields):
    peer.request.publish(msg.LanguageRequest(id=request_id, **fields))


def test_a_frame_is_answered_with_a_chunk_that_names_its_source(node, peer):
    peer.frames_until(lambda: len(peer.chunks()) >= 3, what='three chunks')
    chunk = peer.chunks()[-1]
    assert list(chunk.joint_names) == JOINTS
    assert len(chunk.actions) == chunk.horizon * len(JOINTS)
    assert np.isfinite(chunk.actions).all()
    assert chunk.step_period == pytest.approx(0.05)
    assert stamp(chunk.valid_until) - stamp(chunk.header.stamp) == 500_000_000
    assert stamp(chunk.header.stamp) < stamp(chunk.inference_begin) < stamp(chunk.inference_end)
    numbers = [c.frame for c in peer.chunks()]
    assert numbers == sorted(set(numbers))


def test_each_chunk_has_the_stamp_of_a_frame_that_was_sent(node, peer):
    peer.frames_until(lambda: len(peer.chunks()) >= 5, what='chunks')
    stamps = [stamp(c.header.stamp) for c in peer.chunks()]
    assert stamps == sorted(set(stamps))
    assert set(stamps) <= set(peer.sent)


def test_actions_stream_from_the_newest_chunk_and_hold_when_frames_stop(node, peer):
    steps = peer.heard['oxygen/action']
    peer.frames_until(lambda: len(steps) > 30, what='actions')
    poll(lambda: steps[-1].hold, 60, lambda: 'a held action')
    chunks, begin_ns = {c.frame: c for c in peer.chunks()}, stamp(steps[0].header.stamp)
    for step in [s for s in list(steps) if s.frame in chunks]:
        chunk = chunks[step.frame]
        row = np.reshape(chunk.actions, (chunk.horizon, -1))[step.index]
        assert list(step.values) == list(row)
        assert step.source_stamp == chunk.header.stamp
        assert list(step.joint_names) == JOINTS
        # What comes after a standstill begins with row 0; the others are aligned by their stamp.
        if stamp(step.source_stamp) > begin_ns:
            age = stamp(step.header.stamp) - stamp(step.source_stamp)
            assert step.index == (chunk.horizon - 1 if step.hold else age // 50_000_000)
        if step.hold:
            begin_ns = stamp(step.header.stamp)


def test_words_arrive_on_the_topic_of_their_task(node, peer):
    for task in TASKS:
        ask(peer, f'words-{task}', task=task, prompt='What is next?', max_tokens=12)
    peer.frames_until(lambda: all(peer.ended(f'words-{task}', task) for task in TASKS))
    for task in TASKS:
        tokens = peer.answer(f'words-{task}', task)
        assert tokens[-1].reason in ('stop', 'length')
        assert [t.index for t in tokens if t.token >= 0] == list(
            range(sum(t.token >= 0 for t in tokens))
        )
        assert not any(t.final for t in tokens[:-1])
        assert len({(t.frame, stamp(t.header.stamp)) for t in tokens}) == 1
        assert tokens[0].frame in {c.frame for c in peer.chunks()}


def test_pending_words_go_on_when_no_frame_comes(node, peer):
    ask(peer, 'idle', prompt='Go on.', max_tokens=30)
    peer.frames_until(lambda: peer.answer('idle'), what='a first token')
    poll(lambda: peer.ended('idle'), 60, lambda: 'the end of the answer without frames')


def test_cancel_mid_stream_ends_that_request_alone(node, peer):
    ask(peer, 'victim', prompt='Tell a long story.', max_tokens=LONG)
    ask(peer, 'other', task='memory', prompt='And you?', max_tokens=LONG)
    peer.frames_until(lambda: len(peer.answer('victim')) >= 3 and peer.answer('other', 'memory'))
    peer.cancel.publish(String(data='victim'))
    peer.frames_until(lambda: peer.ended('victim'), what='the end of the cancelled request')
    assert peer.ended('victim').reason == 'cancelled'
    assert len(peer.answer('victim')) < LONG
    assert not any(t.reason == 'cancelled' for t in peer.answer('other', 'memory'))
    peer.cancel.publish(String(data=''))
    peer.frames_until(lambda: peer.ended('other', 'memory'), what='the end of all requests')


@pytest.mark.parametrize(
    ('request_id', 'fields', 'named'),
    [
        ('negative', {'max_tokens': -5}, 'max_tokens is -5'),
        ('nan', {'temperature': math.nan}, 'temperature is nan'),
        ('long', {'max_tokens': 1_000_000}, '1000000'),
        ('top', {'top_p': 0.0}, 'top_p is 0'),
        ('', {}, 'request_id is empty'),
    ],
)
def test_a_bad_request_is_refused_on_its_topic_with_a_reason(
    node, peer, request_id, fields, named
):
    ask(peer, request_id, task='subtask', prompt='x', **fields)
    end = poll(lambda: peer.ended(request_id, 'subtask'), 60, lambda: 'a refusal')
    assert (end.reason, end.final, end.token) == ('refused', True, -1)
    assert named in end.text
    assert poll(lambda: peer.ended(request_id, 'refused'), 60, lambda: 'it on refused too')


def test_an_id_in_use_is_refused_and_the_first_goes_on(node, peer):
    ask(peer, 'twin', prompt='first', max_tokens=20)
    ask(peer, 'twin', prompt='second', max_tokens=20)
    poll(lambda: peer.ended('twin', 'refused'), 60, lambda: 'a refusal')
    assert 'twin' in peer.ended('twin', 'refused').text
    peer.frames_until(lambda: any(t.reason in ('stop', 'length') for t in peer.answer('twin')))


@pytest.mark.parametrize('task', ['dancing', 'no topic/at all!'])
def test_a_task_without_a_topic_is_refused_where_it_can_be_heard(node, peer, task):
    ask(peer, 'lost', task=task, prompt='x')
    end = poll(lambda: peer.ended('lost', 'refused'), 60, lambda: 'a refusal')
    assert end.reason == 'refused' and task in end.text


def test_malformed_messages_among_good_ones_are_counted_and_the_node_lives(node, peer):
    before = dropped(peer.wait_for_state('waiting'))
    now = peer.now_ns()

    def bad_ones():
        peer.base.publish(image(now, encoding='16UC1'))
        peer.base.publish(image(now, step=5))
        peer.base.publish(image(now, length=100))
        peer.wrist.publish(jpeg(now, data=b'no picture'))
        peer.joints.publish(joint_state(now, names=JOINTS[:3]))
        peer.joints.publish(joint_state(now, positions=[math.nan] * len(JOINTS)))
        peer.instruction.publish(String(data='  '))

    def counted():
        bad_ones()
        after = dropped(peer.status())
        return all(
            after.get(reason, 0) > before.get(reason, 0)
            for reason in (
                'bad_encoding',
                'bad_step',
                'bad_length',
                'corrupt_image',
                'missing_joints',
                'bad_joint_state',
                'empty_instruction',
            )
        )

    peer.frames_until(counted, what='counts of what was dropped')
    peer.frames_until(lambda: len(peer.chunks()) >= 3, what='chunks in spite of them')
    assert 'cameras/base/image_raw: encoding' in node.log


def test_an_instruction_of_10000_characters_is_used_and_a_longer_one_is_counted(node, peer):
    before = dropped(poll(peer.status, 60, lambda: 'a status')).get('long_instruction', 0)
    peer.instruction.publish(String(data='y' * 10_001))
    poll(lambda: dropped(peer.status()).get('long_instruction', 0) > before, 60, lambda: 'a count')
    peer.instruction.publish(String(data='z ' * 5000))
    peer.frames_until(lambda: len(peer.chunks()) >= 2, what='chunks')


def test_reset_cancels_all_language(node, peer):
    ask(peer, 'episode', prompt='x', max_tokens=LONG)
    peer.frames_until(lambda: len(peer.answer('episode')) >= 2)
    assert peer.call(Trigger, 'oxygen/reset', Trigger.Request()).message == 'new episode'
    poll(lambda: peer.ended('episode'), 60, lambda: 'the end')
    assert peer.ended('episode').reason == 'cancelled'


def test_status_counts_and_says_what_it_waits_for(node, peer):
    waiting = peer.wait_for_state('waiting')
    assert '/cameras/base/image_raw' in waiting.detail or 'joint state' in waiting.detail
    serving = peer.frames_until(
        lambda: peer.status() and peer.status().state == 'serving' and peer.status()
    )
    assert serving.chunks <= serving.frames and serving.frames_per_s > 0
    assert serving.kv_bytes_copied_between_frames == 0
    assert serving.kv_bytes_limit > 0 and serving.rows_limit == 4
    effective = {pair.key: pair.value for pair in serving.effective}
    assert (serving.mode, serving.budget) == (effective['mode'], effective['budget'])


def test_the_effective_contract_is_latched_for_late_listeners(node, peer):
    heard = peer.hear('oxygen/contract', String, qos.CONTRACT)
    poll(lambda: heard, 60, lambda: 'the latched contract')
    contract = json.loads(heard[-1].data)
    assert contract['parameters']['action_rate_hz'] == 70.0
    assert [j['name'] for j in contract['robot']['actions']['joints']] == JOINTS
    assert contract['model']['action_dim'] == len(JOINTS)


def test_diagnostics_name_the_node(node, peer):
    heard = peer.hear('/diagnostics', DiagnosticArray, qos.DIAGNOSTICS)
    poll(lambda: heard, 60, lambda: 'diagnostics')
    assert heard[-1].status[0].name == '/oxygen: engine'


def test_c24_frames_of_another_time_get_no_chunks_and_it_is_said_once(node, peer):
    three_days_ns = 3 * 86_400 * 1_000_000_000
    before = dropped(poll(peer.status, 60, lambda: 'a status')).get('stale_image', 0)

    def noticed():
        peer.frame(peer.now_ns() - three_days_ns)
        time.sleep(0.05)
        status = peer.status()
        stale = dropped(status).get('stale_image', 0) - before
        return 'use_sim_time' in status.detail and stale > 20 and 'days' in node.log

    poll(noticed, 60, lambda: f'a word about stamps, {peer.status()}')
    assert peer.status().state == 'waiting'
    assert 'camera base_0_rgb on cameras/base/image_raw: what comes is 3 days old' in node.log
    assert not peer.heard['oxygen/action'] and not peer.chunks()
    assert node.log.count('camera base_0_rgb on cameras/base/image_raw: what comes is') == 1
    peer.frames_until(lambda: peer.status().detail == '', what='the end of the complaint')


@pytest.mark.parametrize('what', ['camera base_0_rgb', 'joint state'])
def test_an_input_that_comes_late_stops_new_chunks_as_one_that_does_not_come(node, peer, what):
    """Fresh by arrival, and older by its stamp than its limit of 0.5 s and 0.2 s."""
    late_ns = 700_000_000 if what.startswith('camera') else 300_000_000
    health = peer.hear('/diagnostics', DiagnosticArray, qos.DIAGNOSTICS)
    peer.frames_until(lambda: len(peer.chunks()) > 2, what='chunks')

    def late():
        now_ns = peer.now_ns()
        joints_ns = now_ns if what.startswith('camera') else now_ns - late_ns
        cameras_ns = now_ns - late_ns if what.startswith('camera') else now_ns
        peer.joints.publish(joint_state(joints_ns))
        peer.base.publish(image(cameras_ns))
        peer.wrist.publish(jpeg(cameras_ns))
        time.sleep(0.05)
        return f'{what} on' in peer.status().detail and 'by its stamp' in peer.status().detail

    poll(late, 60, lambda: f'a word about {what}, {peer.status()}')
    assert peer.status().state == 'waiting'
    peer.chunks().clear()
    for _ in range(20):
        late()
    assert not peer.chunks()
    entries = {entry.name.removeprefix('/oxygen: '): entry for entry in health[-1].status}
    assert (
        entries[what].level == DiagnosticStatus.ERROR and 'by its stamp' in entries[what].message
    )
    peer.frames_until(lambda: peer.chunks() and not peer.status().detail, what='chunks again')

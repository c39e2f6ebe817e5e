"""What a robot's monitor sees on /diagnostics, over real topics."""

import itertools
import time

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from ros_harness import BASE, image, joint_state, jpeg, poll
from std_msgs.msg import String
from std_srvs.srv import Trigger

from oxygen_ros import msg
from oxygen_ros.ros import qos

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
CAMERA = 'camera base_0_rgb'


@pytest.fixture
def parts(node, peer):
    """The newest entry of a part of the node, by the part's name."""
    heard = peer.hear('/diagnostics', DiagnosticArray, qos.DIAGNOSTICS)

    def newest():
        entries = heard[-1].status if heard else []
        return {entry.name.removeprefix('/oxygen: '): entry for entry in entries}

    return newest


def values(entry):
    return {pair.key: pair.value for pair in entry.values}


def wait_for(parts, part, level, while_sending, timeout=60):
    """Send until an entry has this level, and return the entry."""

    def attempt():
        while_sending()
        time.sleep(0.05)
        entry = parts().get(part)
        return entry if entry and entry.level == level else None

    return poll(attempt, timeout, lambda: f'{part} at {level}, now {parts().get(part)}')


def test_every_part_has_an_entry_with_names_as_monitors_group_them(peer, parts):
    wait_for(parts, CAMERA, OK, peer.frame)
    assert list(parts()) == [
        'engine',
        'language',
        'action stream',
        CAMERA,
        'camera left_wrist_0_rgb',
        'joint state',
        'drops',
    ]
    assert {entry.hardware_id for entry in parts().values()} == {'demo_arm'}
    assert all(entry.message for entry in parts().values())


def test_a_silent_camera_turns_bad_under_its_name_and_good_again(peer, parts):
    wait_for(parts, CAMERA, OK, peer.frame)

    def without_the_base():
        stamp_ns = peer.now_ns()
        peer.joints.publish(joint_state(stamp_ns))
        peer.wrist.publish(jpeg(stamp_ns))

    silent = wait_for(parts, CAMERA, ERROR, without_the_base)
    assert BASE.strip('/') in silent.message and 'limit 0.5 s' in silent.message
    assert float(values(silent)['age_s']) > 0.5
    assert parts()['camera left_wrist_0_rgb'].level == OK
    assert parts()['engine'].level == WARN
    back = wait_for(parts, CAMERA, OK, peer.frame)
    assert float(values(back)['rate_hz']) > 0


def test_a_camera_that_repeats_one_stamp_is_as_bad_as_a_silent_one(peer, parts):
    wait_for(parts, CAMERA, OK, peer.frame)
    frozen_ns = peer.now_ns()

    def frozen():
        stamp_ns = peer.now_ns()
        peer.joints.publish(joint_state(stamp_ns))
        peer.wrist.publish(jpeg(stamp_ns))
        peer.base.publish(image(frozen_ns))

    wait_for(parts, CAMERA, ERROR, frozen)


def test_what_is_dropped_is_named_while_it_is_new(peer, parts):
    peer.base.publish(image(peer.now_ns(), encoding='16UC1'))

    def named():  # drops of what was sent before may still be new
        entry = parts().get('drops') if parts() else None
        return entry is not None and 'bad_encoding' in entry.message and entry

    entry = poll(named, 60, lambda: f'bad_encoding, {parts()}')
    assert entry.level == WARN
    assert int(values(entry)['bad_encoding']) >= 1
    wait_for(parts, 'drops', OK, peer.frame)


def test_rates_rows_kv_and_budget_are_shown_while_words_come(peer, parts):
    numbers = itertools.count()

    def shown():  # asked again and again: an answer may end before a report sees its row
        number = next(numbers)
        if number % 10 == 0:
            peer.request.publish(
                msg.LanguageRequest(id=f'shown-{number}', task='memory', max_tokens=60)
            )
        peer.frame()
        time.sleep(0.05)
        return parts() and int(values(parts()['engine'])['rows']) and values(parts()['engine'])

    engine = poll(shown, 60, lambda: f'a row, {parts().get("engine")}')
    assert int(engine['kv_bytes']) > 0
    assert 0 < float(engine['kv_percent']) <= 100
    assert engine['budget'] == '5'
    assert 0 <= int(engine['budget_used']) <= 5
    assert int(engine['budget_used']) + int(engine['budget_slack']) == 5
    assert float(engine['node_overhead_ms_p95']) > 0
    assert int(values(parts()['action stream'])['missed_ticks']) >= 0


def test_why_words_are_late_is_shown_with_how_long_they_waited_for_it(peer, parts):
    numbers = itertools.count()

    def waits(reason):
        """Keep asking more than there are rows; whether this has been waited for."""

        def shown():
            number = next(numbers)
            peer.request.publish(msg.LanguageRequest(id=f'late-{number}', max_tokens=100))
            if reason != 'no frame yet':
                peer.frame()
            time.sleep(0.05)
            language = parts().get('language') if parts() else None
            return language and reason in language.message and values(language)

        return poll(shown, 60, lambda: f'{reason}, {parts().get("language")}')

    assert float(waits('no frame yet')['waited_s no frame yet']) >= 0
    shown = waits('no row free')
    assert 'no row free' in shown['waits_for'] and int(shown['requests']) > 4
    assert float(waits('budget used up')['waited_s budget used up']) > 0
    peer.cancel.publish(String(data=''))
    poll(lambda: parts()['language'].message == 'nothing asked', 60, lambda: parts()['language'])
    assert parts()['language'].level == OK


def test_an_emergency_stop_is_an_error_of_the_action_stream(peer, parts):
    def wait_for_streaming():
        def streaming():  # not by level: a busy machine misses ticks
            peer.frame()
            time.sleep(0.05)
            return parts() and values(parts()['action stream'])['state'] == 'streaming'

        poll(streaming, 60, lambda: f'actions, {parts().get("action stream")}')

    wait_for_streaming()
    assert peer.call(Trigger, 'oxygen/stop', Trigger.Request()).success
    stopped = wait_for(parts, 'action stream', ERROR, peer.frame)
    assert 'oxygen/stop' in stopped.message or '~/stop' in stopped.message
    assert peer.call(Trigger, 'oxygen/resume', Trigger.Request()).success
    wait_for_streaming()
    assert float(values(parts()['action stream'])['seam_jump']) >= 0

"""The circle: a live node is recorded by contract, and replaying the bag gives its answers."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import ros_harness as rig
from std_msgs.msg import String

from oxygen_ros import msg
from oxygen_ros.replay import cli
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.topics import topics_to_record
from oxygen_ros.ros.contract import load_contract


@pytest.fixture(scope='module')
def recorded(tmp_path_factory, tiny_checkpoint, peer):
    """The bag, the node's parameter file and what the recorder said."""
    folder = tmp_path_factory.mktemp('recorded')
    node = rig.NodeProcess(
        folder, checkpoint=str(tiny_checkpoint), robot=rig.patient_contract(folder),
        autostart=True, seed=5, status_period_s=0.1, denoise_steps=2,
    )  # fmt: skip
    bag = folder / 'bag'
    try:
        peer.wait_for_state('waiting')
        command = [sys.executable, '-m', 'oxygen_ros.replay.record', str(bag)]
        recorder = subprocess.Popen(
            [*command, '--params', str(node.params)], stderr=subprocess.PIPE, text=True
        )
        try:
            rig.poll(lambda: is_recorded(peer.node), 60, lambda: 'the recorder')
            work(peer)
            recorder.send_signal(signal.SIGINT)
            _, said = recorder.communicate(timeout=60)
        finally:
            recorder.kill()
        assert recorder.returncode == 0, said
        assert node.stop() == 0, node.log
    finally:
        node.kill()
    return bag, node.params, said


def is_recorded(node):
    """Whether the recorder has subscribed to every topic that this test publishes or waits for."""
    topics = [
        rig.BASE, rig.WRIST, '/joint_states', '/instruction', '/oxygen/language/request',
        '/oxygen/language/conversation', '/oxygen/action_chunk', '/oxygen/contract',
    ]  # fmt: skip
    heard_by = (node.get_subscriptions_info_by_topic(topic) for topic in topics)
    return all(any(end.node_name == 'oxygen_record' for end in ends) for ends in heard_by)


def work(peer):
    """Some frames and a request, as a robot sends them; joints well before the images."""
    peer.instruction.publish(String(data='stack the cups'))
    rig.poll(lambda: 'instruction' not in peer.status().detail, 60, lambda: 'the instruction')
    senders = (peer.joints, peer.base, peer.wrist, peer.request)
    counts = lambda: [sender.get_subscription_count() for sender in senders]  # noqa: E731
    rig.poll(lambda: min(counts()) >= 2, 60, lambda: f'node and recorder, {counts()}')
    time.sleep(0.5)  # for the other ends to have matched as well
    for k in range(6):
        if k == 2:
            peer.request.publish(msg.LanguageRequest(id='q', prompt='what now?', max_tokens=5))
            rig.poll(lambda: peer.status().queued, 60, lambda: 'the request to be queued')
        stamp_ns = peer.now_ns()
        peer.joints_first(lambda s=stamp_ns: peer.joints.publish(rig.joint_state(s)))
        peer.base.publish(rig.image(stamp_ns, 40 + 20 * k))
        peer.wrist.publish(rig.jpeg(stamp_ns, 200 - 20 * k))
        rig.poll(lambda s=stamp_ns: peer.answered(s), 60, lambda k=k: f'frame {k}')
    rig.poll(lambda: peer.ended('q'), 60, lambda: 'the answer')
    time.sleep(1)  # what is on its way to the recorder


def test_all_that_the_contract_names_is_in_the_bag(recorded):
    bag, _, said = recorded
    wanted = topics_to_record(load_contract('demo'), rig.TASKS)
    with Bag(bag) as opened:
        held = {topic.name: topic.messages for topic in opened.topics}
        latched = list(opened.messages(['/oxygen/contract']))
    assert f'{sum(held.values())} messages' in said
    assert set(held) <= set(wanted)
    for topic in (rig.BASE, rig.WRIST, '/joint_states', '/oxygen/action_chunk'):
        assert held[topic] == 6
    assert held['/oxygen/action'] > 6 and held['/oxygen/status'] > 1
    # published before the recorder came
    assert json.loads(latched[0].value.data)['robot']['robot'] == 'demo_arm'


def test_replaying_it_reproduces_the_chunks_and_words_of_the_node(recorded, tmp_path):
    bag, params, _ = recorded
    out = tmp_path / 'report.json'
    assert cli.main([str(bag), '--params', str(params), '--json', str(out)]) == 0
    report = json.loads(out.read_text())
    node = report['recorded_node']
    assert (node['chunks'], node['also_here'], node['equal']) == (6, 6, 6)
    assert set(node['max_difference'].values()) == {0.0}
    assert (node['answers'], node['answers_also_here'], node['answers_equal']) == (1, 1, 1)
    used = {topic['name']: topic['used_as'] for topic in report['bag']['topics']}
    assert used['/oxygen/action_chunk'] == 'said_chunk'
    # the numbers are compared and not only counted
    other = tmp_path / 'other.json'
    arguments = [str(bag), '--params', str(params), '--set', 'seed=6', '--json', str(other)]
    assert cli.main(arguments) == 0
    node = json.loads(other.read_text())['recorded_node']
    assert (node['also_here'], node['equal']) == (6, 0)
    assert np.min(list(node['max_difference'].values())) > 0


def test_nothing_to_record_and_a_folder_that_is_there(tmp_path, recorded):
    bag, params, _ = recorded
    for out, words in [(bag, 'exists already'), (tmp_path / 'new', 'nothing was published')]:
        done = subprocess.run(
            [sys.executable, '-m', 'oxygen_ros.replay.record', str(out), '--params', str(params),
             '--seconds', '0.3', '--namespace', 'nobody'],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2 and words in done.stderr, done.stderr
    assert bag.exists() and not (tmp_path / 'new').exists()

"""Publishers as they are: any quality of service, wrong types, doubled topics, strange stamps."""

import time

import pytest
import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros_harness import BASE, dropped, image, joint_state, jpeg, poll
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String


def offer(reliability, durability, depth=1):
    return QoSProfile(
        depth=depth,
        reliability=ReliabilityPolicy[reliability],
        durability=DurabilityPolicy[durability],
    )


@pytest.fixture
def replace_base(peer):
    """Publish the base camera otherwise; afterwards as usual again."""

    def replace(profile):
        peer.node.destroy_publisher(peer.base)
        peer.base = peer.node.create_publisher(Image, BASE, profile)
        return peer.base

    yield replace
    replace(5)


@pytest.mark.parametrize('reliability', ['BEST_EFFORT', 'RELIABLE'])
@pytest.mark.parametrize('durability', ['VOLATILE', 'TRANSIENT_LOCAL'])
def test_c16_a_camera_is_heard_whatever_it_offers(
    node, peer, replace_base, reliability, durability
):
    base = replace_base(offer(reliability, durability))

    def asked():
        """What the node's reader asks for, once there is only one."""
        readers = peer.node.get_subscriptions_info_by_topic(BASE)
        return readers[0].qos_profile.reliability.name if len(readers) == 1 else ''

    peer.frames_until(lambda: peer.chunks() and asked() == reliability, what=reliability)
    before = len(peer.chunks())
    peer.frames_until(lambda: len(peer.chunks()) > before + 1, what='chunks')
    assert base.get_subscription_count() == 1


@pytest.fixture
def driver():
    """A node of another process would do the same: one has one type to a topic's name."""
    context = rclpy.Context()
    rclpy.init(context=context)
    yield rclpy.create_node('driver', context=context)
    context.try_shutdown()


def test_c09_a_topic_of_another_type_is_named_and_forgotten_when_mended(node, peer, driver):
    peer.node.destroy_publisher(peer.base)
    wrong = driver.create_publisher(CompressedImage, BASE, 5)
    peer.wait_for_detail('set type: compressed in the contract')
    text = 'is published as sensor_msgs/msg/CompressedImage, must be sensor_msgs/msg/Image'
    assert text in peer.status().detail and BASE[1:] in peer.status().detail
    assert node.log.count(text) == 1
    driver.destroy_publisher(wrong)
    peer.base = peer.node.create_publisher(Image, BASE, 5)
    poll(lambda: text not in peer.status().detail, 60, lambda: 'the end of it')


def test_several_publishers_of_a_camera_are_named(node, peer):
    other = peer.node.create_publisher(Image, BASE, 5)
    peer.wait_for_detail('has 2 publishers (/peer, /peer)', 10)
    peer.node.destroy_publisher(other)
    poll(lambda: '2 publishers' not in peer.status().detail, 60, lambda: 'the end of it')


def test_an_instruction_that_cannot_be_heard_is_named(node, peer):
    lost = peer.node.create_publisher(String, 'instruction', offer('BEST_EFFORT', 'VOLATILE'))
    peer.wait_for_detail('instruction on instruction: /peer cannot be heard')
    assert 'it offers BEST_EFFORT and VOLATILE, needed are RELIABLE' in peer.status().detail
    peer.node.destroy_publisher(lost)


@pytest.mark.parametrize(('durability', 'readers'), [('VOLATILE', 1), ('TRANSIENT_LOCAL', 2)])
def test_an_instruction_is_used_and_counted_once_although_two_readers_hear_it(
    node, peer, durability, readers
):
    status = poll(peer.status, 60, lambda: 'a status')
    before = dropped(status).get('empty_instruction', 0)
    said = peer.node.create_publisher(String, 'instruction', offer('RELIABLE', durability))
    poll(lambda: said.get_subscription_count() == readers, 60, lambda: 'readers')

    def counted():
        return dropped(peer.status()).get('empty_instruction', 0) - before

    for number in (1, 2, 3):  # one by one: the latched reader keeps the last one alone
        said.publish(String(data=' '))
        poll(lambda n=number: counted() >= n, 60, lambda: f'a count, {peer.status()}')
    peer.heard['oxygen/status'].clear()
    poll(lambda: len(peer.heard['oxygen/status']) > 5, 60, lambda: 'reports')
    assert counted() == 3
    peer.node.destroy_publisher(said)


def test_c03_a_camera_that_cannot_be_used_is_named_until_it_can(node, peer):
    def depth():
        peer.base.publish(image(peer.now_ns(), encoding='16UC1'))
        return peer.status() and "encoding '16UC1' cannot be used" in peer.status().detail

    poll(depth, 60, lambda: f'a word about the encoding, {peer.status()}')
    peer.frames_until(lambda: peer.status().detail == '', what='the end of the complaint')


def test_c68_one_bad_image_among_good_ones_does_no_harm(node, peer):
    for k in range(20):
        stamp_ns = peer.now_ns()
        peer.joints.publish(joint_state(stamp_ns))
        peer.wrist.publish(jpeg(stamp_ns))
        peer.base.publish(image(stamp_ns, length=7) if k == 10 else image(stamp_ns))
        poll(lambda: peer.answered(stamp_ns) or k == 10, 60, lambda: 'a chunk')  # noqa: B023
    assert dropped(poll(peer.status, 60, lambda: 'a status'))['bad_length'] >= 1


def test_c26_zero_stamps_are_frames_of_their_arrival_and_said_once(node, peer):
    begin_ns = peer.now_ns()

    def answered():
        peer.frame(stamp_ns=0)
        time.sleep(0.1)
        return len(peer.chunks()) >= 5

    poll(answered, 60, lambda: 'chunks of images without a stamp')
    stamps = [c.header.stamp.sec * 10**9 + c.header.stamp.nanosec for c in peer.chunks()]
    assert all(begin_ns < stamp_ns < peer.now_ns() for stamp_ns in stamps)
    for what in ('camera base_0_rgb', 'camera left_wrist_0_rgb', 'joint state'):
        lines = [line for line in node.log.splitlines() if 'stamps are 0' in line and what in line]
        assert len(lines) == 1


def test_c23_stamps_that_go_back_end_what_was_before_and_are_said_once(node, peer):
    """From a clock that is 0.4 s ahead to one that is right: all are within the age limits."""
    asked = peer.ask_long()
    said = node.log.count('went back')

    def ahead():
        peer.frame(peer.now_ns() + 400_000_000)
        time.sleep(0.1)
        return any(len(peer.answer(n)) > 1 for n in asked)

    poll(ahead, 60, lambda: 'a first word')

    def looped():
        peer.frame()
        time.sleep(0.1)
        return len(peer.ends(asked)) == 4

    poll(looped, 60, lambda: 'the end of the old requests')
    assert 'cancelled' in peer.ends(asked)
    chunks = len(peer.chunks())
    for _ in range(5):
        stamp_ns = peer.frame()
        poll(lambda: peer.answered(stamp_ns), 60, lambda: 'a chunk')  # noqa: B023
    assert len(peer.chunks()) >= chunks + 5
    assert node.log.count('went back') == said + 1


def test_c27_stamps_of_the_future_are_named_and_move_the_robot_no_longer_than_others(node, peer):
    steps = peer.heard['oxygen/action']

    def noticed():
        peer.frame(peer.now_ns() + 5_000_000_000)
        time.sleep(0.1)
        return 's ahead of the clock of the node' in peer.status().detail

    poll(noticed, 60, lambda: f'a word about stamps, {peer.status()}')
    assert peer.chunks()
    poll(lambda: steps and steps[-1].hold, 60, lambda: 'the end of the last chunk')
    peer.frames_until(lambda: peer.status().detail == '', what='the end of the complaint')

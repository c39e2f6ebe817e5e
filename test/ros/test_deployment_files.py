"""The files of config that name topics, compared with a running node."""

import configparser
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from ros_harness import poll
from sensor_msgs.msg import CompressedImage, Image

from oxygen_ros import msg

CONFIG = Path(__file__).resolve().parents[2] / 'config'
# Of another node, or of none: no node of this package has them in each of its states.
NOT_OF_THE_NODE = {'/clock'}
LATER_ROS = {'/oxygen/get_type_description'}  # not before rclpy of Jazzy's successors


def full_name(name):
    return name if name.startswith('/') else '/' + name.replace('~', 'oxygen', 1)


def allowed(node_name, tag, right):
    """Names to which the policy gives a node a right (publish, subscribe or reply)."""
    profiles = ElementTree.parse(CONFIG / 'sros2' / 'policy.xml').findall('.//profile')
    (profile,) = [p for p in profiles if (p.get('ns'), p.get('node')) == ('/', node_name)]
    groups = [group for group in profile.findall(tag) if group.get(right) == 'ALLOW']
    return {full_name(entry.text) for group in groups for entry in group}


@pytest.mark.parametrize('node_name', ['oxygen', 'oxygen_emergency'])
@pytest.mark.parametrize(
    'tag, right, ask',
    [
        ('topics', 'publish', 'get_publisher_names_and_types_by_node'),
        ('topics', 'subscribe', 'get_subscriber_names_and_types_by_node'),
        ('services', 'reply', 'get_service_names_and_types_by_node'),
    ],
)
def test_the_policy_allows_what_the_nodes_have_and_no_more(node, peer, node_name, tag, right, ask):
    wanted = allowed(node_name, tag, right) - NOT_OF_THE_NODE

    def found():
        return {name for name, _ in getattr(peer.node, ask)(node_name, '/')}

    poll(
        lambda: found() - NOT_OF_THE_NODE | LATER_ROS == wanted | LATER_ROS,
        15,
        lambda: f'{wanted} in the policy, {found()} in the node',
    )


def layout_paths():
    """Every topic of the layout, with the path of fields behind it."""
    layout = json.loads((CONFIG / 'foxglove' / 'oxygen.json').read_text())
    for name, panel in layout['configById'].items():
        for path in panel.get('paths', []):
            yield path['value']
        for key in ('topicPath', 'topicToRender'):
            if key in panel:
                yield panel[key]
        if name.startswith('Image!'):
            yield panel['imageMode']['imageTopic']


def test_the_layout_shows_fields_that_exist():
    kinds = {
        '/oxygen/status': msg.EngineStatus,
        '/oxygen/action': msg.ActionStep,
        '/oxygen/language/conversation': msg.LanguageToken,
        '/oxygen/language/subtask': msg.LanguageToken,
        '/diagnostics': DiagnosticArray,
        '/cameras/base/image_raw': Image,
        '/cameras/wrist/image_raw/compressed': CompressedImage,
    }
    seen = set()
    for path in layout_paths():
        topic, _, field = path.partition('.')
        assert topic in kinds, path
        seen.add(topic)
        assert not field or hasattr(kinds[topic](), re.sub(r'\[\d+\]$', '', field)), path
    assert seen == set(kinds)


def test_the_layout_places_each_panel_once():
    layout = json.loads((CONFIG / 'foxglove' / 'oxygen.json').read_text())

    def leaves(part):
        if isinstance(part, str):
            return [part]
        return [*leaves(part['first']), *leaves(part['second'])]

    assert sorted(leaves(layout['layout'])) == sorted(layout['configById'])


def test_the_unit_starts_the_node_and_ends_it_in_time():
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(CONFIG / 'systemd' / 'oxygen.service')
    service = unit['Service']
    assert 'exec python -m oxygen_ros.ros.node --ros-args' in service['ExecStart']
    assert service['KillSignal'] == 'SIGTERM' and int(service['TimeoutStopSec']) > 5
    assert int(service['LimitRTPRIO']) >= 50

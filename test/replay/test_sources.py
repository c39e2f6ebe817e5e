"""Which topic of a bag is which input of the contract. Needs no rclpy."""

import pytest
from bags import BASE, KIND, REQUEST, STATE, TASK, WRIST, image, session, write_bag

from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.sources import Source, find_sources
from oxygen_ros.ros.contract import load_contract
from oxygen_ros.types import OxygenError


@pytest.fixture
def find(tmp_path):
    def run(rename=None, kinds=None, lines=None, topics=(), **options):
        """Bind the topics of a bag after renaming or dropping (None) some."""
        rename = rename or {}
        lines = session(frames=1) if lines is None else lines
        lines = [(rename.get(t, t), time, value) for t, time, value in lines]
        kinds = KIND | {rename.get(t, t): kind for t, kind in KIND.items()} | (kinds or {})
        path = write_bag(
            tmp_path / 'bag', [line for line in lines if line[0]], kinds=kinds, topics=topics
        )
        with Bag(path) as bag:
            return find_sources(bag, load_contract('demo'), **options)

    return run


def test_names_of_the_contract(find):
    sources = find(topics=[REQUEST])
    assert sources.by_topic == {
        BASE: Source('image', 'base_0_rgb'),
        WRIST: Source('compressed', 'left_wrist_0_rgb'),
        STATE: Source('state'),
        TASK: Source('instruction'),
    }
    assert len(sources.notes) == 1 and 'language requests' in sources.notes[0]


def test_names_in_a_namespace(find):
    rename = {topic: '/robot1' + topic for topic in KIND}
    assert set(find(rename).by_topic) == {rename[t] for t in (BASE, WRIST, STATE, TASK)}


def test_two_robots_need_a_namespace(find, tmp_path):
    lines = [
        (f'/{robot}{topic}', time, value)
        for topic, time, value in session(frames=1)
        for robot in ('left', 'right')
    ]
    kinds = {f'/{robot}{topic}': k for topic, k in KIND.items() for robot in ('left', 'right')}
    with pytest.raises(OxygenError) as caught:
        find(lines=lines, kinds=kinds)
    text = str(caught.value)
    assert '/left/cameras/base/image_raw, /right/cameras/base/image_raw' in text
    assert '--namespace' in text
    with Bag(tmp_path / 'bag') as bag:
        sources = find_sources(bag, load_contract('demo'), namespace='right')
    assert set(sources.by_topic) == {f'/right{t}' for t in (BASE, WRIST, STATE, TASK)}


def test_the_exact_name_beats_one_in_a_namespace(find):
    extra = ('/other' + STATE, 5, dict(map(lambda line: (line[0], line[2]), session()))[STATE])
    sources = find(lines=[*session(frames=1), extra], kinds={'/other' + STATE: KIND[STATE]})
    assert STATE in sources.by_topic and '/other' + STATE not in sources.by_topic


@pytest.mark.parametrize(
    ('missing', 'words'),
    [
        (BASE, ['camera base_0_rgb of', 'demo.yaml', 'cameras/base/image_raw']),
        (STATE, ['the joint state', 'joint_states (sensor_msgs/msg/JointState)']),
        (TASK, ['the instruction', 'instruction (std_msgs/msg/String)']),
    ],
)
def test_what_is_missing_is_named_with_what_the_bag_has(find, missing, words):
    with pytest.raises(OxygenError) as caught:
        find({missing: None})
    text = str(caught.value)
    for word in [*words, 'lacks', f'{WRIST} (sensor_msgs/msg/CompressedImage, 1)']:
        assert word in text


def test_topic_without_messages(find):
    with pytest.raises(OxygenError, match='lacks camera base_0_rgb .* has no messages'):
        find(lines=[line for line in session() if line[0] != BASE], topics=[BASE])


def test_c09_raw_where_compressed_is_expected(find):
    lines = [(t, time, image(time) if t == WRIST else v) for t, time, v in session(frames=1)]
    with pytest.raises(OxygenError) as caught:
        find(lines=lines, kinds={WRIST: KIND[BASE]})
    text = str(caught.value)
    assert 'must be sensor_msgs/msg/CompressedImage' in text
    assert f'{WRIST} is sensor_msgs/msg/Image' in text and 'set type: image' in text


def test_unknown_type(find):
    with pytest.raises(OxygenError, match='must be sensor_msgs/msg/JointState, but /joint_states'):
        find(kinds={STATE: 'sensor_msgs/msg/Imu'}, lines=[
            (t, time, b'\0\1\0\0' if t == STATE else v) for t, time, v in session(frames=1)
        ])  # fmt: skip


def test_a_default_instruction_makes_the_topic_optional(find):
    sources = find({TASK: None}, instruction='pick')
    assert any('lacks the instruction' in note for note in sources.notes)

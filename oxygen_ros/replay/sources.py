"""Which topic of a bag is which input of the contract."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from itertools import islice

from oxygen_ros.replay.bag import REQUEST_TYPE, Bag, Topic
from oxygen_ros.ros.contract import Contract
from oxygen_ros.ros.conversions import ConversionError, joint_vector
from oxygen_ros.types import OxygenError

CAMERA_TYPES = {
    'image': 'sensor_msgs/msg/Image',
    'compressed': 'sensor_msgs/msg/CompressedImage',
}
# What a recorded node published -> what it feeds.
SAID_TYPES = {
    'oxygen_ros/msg/ActionChunk': 'said_chunk',
    'oxygen_ros/msg/LanguageToken': 'said_token',
}
FIRST_STATES = 10  # joint states that are looked at before the work begins
STATE_TYPE = 'sensor_msgs/msg/JointState'
STRING_TYPE = 'std_msgs/msg/String'


@dataclass(frozen=True)
class Source:
    """What a topic of the bag feeds. kind: image, compressed, state, instruction, request, cancel.

    said_chunk, said_token: what a node answered at the time, to compare with.
    slot is the camera's, '' for the others.
    """

    kind: str
    slot: str = ''


@dataclass(frozen=True)
class Sources:
    """Topics of the bag -> what they feed; notes: what the bag lacks and can do without."""

    by_topic: dict[str, Source]
    notes: tuple[str, ...]

    @property
    def inputs(self) -> dict[str, Source]:
        """Those of them that a node reads."""
        said = SAID_TYPES.values()
        return {
            topic: source for topic, source in self.by_topic.items() if source.kind not in said
        }


@dataclass(frozen=True)
class Binding:
    """An input that the contract names, and the bag's topic for it, or None and why there is none.

    kind: the ROS type that is needed. required: a replay cannot do without it.
    """

    what: str
    kind: str
    source: Source
    required: bool
    topic: Topic | None
    problem: str = ''


class _Finder:
    """Looks topics up by the contract's names, in a namespace if one is given."""

    def __init__(self, bag: Bag, namespace: str) -> None:
        self._bag = bag
        self._namespace = '/' + namespace.strip('/') if namespace.strip('/') else ''

    def bind(self, what: str, name: str, kind: str, source: Source, required: bool) -> Binding:
        """What the bag has for one input."""
        bag, found = self._bag, self._matches(name)
        right = [topic for topic in found if topic.type == kind]
        filled = [topic for topic in right if topic.messages] or right
        if len(filled) == 1 and filled[0].messages:
            return Binding(what, kind, source, required, filled[0])
        if len(filled) > 1:
            names = ', '.join(topic.name for topic in filled)
            # whichever it is, guessing could feed one robot with another's messages
            required = True
            problem = f'{what} {name} may be any of {names}: choose with --namespace'
        elif filled:
            problem = f'lacks {what}: {filled[0].name} has no messages'
        elif found:
            given = ', '.join(f'{topic.name} is {topic.type}' for topic in found)
            problem = f'{what} must be {kind}, but {given}{type_advice({t.type for t in found})}'
        else:
            problem = f'lacks {what}: no topic {name} ({kind})'
        return Binding(what, kind, source, required, None, f'bag {bag.path}: {problem}')

    def _matches(self, name: str) -> list[Topic]:
        """Topics of that name: as it is, else (a relative name) in some namespace."""
        if name.startswith('/'):
            return [topic for topic in self._bag.topics if topic.name == name]
        tail = '/' + name.removeprefix('~/')
        if self._namespace:
            inside = [t for t in self._bag.topics if t.name.startswith(self._namespace + '/')]
            return [topic for topic in inside if topic.name.endswith(tail)]
        exact = [topic for topic in self._bag.topics if topic.name == tail]
        return exact or [topic for topic in self._bag.topics if topic.name.endswith(tail)]


def bind_all(
    bag: Bag, contract: Contract, *, instruction: str = '', namespace: str = ''
) -> list[Binding]:
    """Every input of the contract; instruction is the default that makes the topic optional."""
    bind = _Finder(bag, namespace).bind
    bindings = []
    for camera in contract.cameras:
        what = f'camera {camera.slot} of {contract.path or contract.robot}'
        source = Source(camera.type, camera.slot)
        kind = CAMERA_TYPES[camera.type]
        bindings.append(bind(what, camera.topic, kind, source, camera.required))
    state, words = contract.state.topic, contract.instruction.topic
    bindings.append(bind('the joint state', state, STATE_TYPE, Source('state'), True))
    # without the topic a default will do, from the parameters or the contract
    needed = not (instruction or contract.instruction.default)
    bindings.append(bind('the instruction', words, STRING_TYPE, Source('instruction'), needed))
    request = '~/language/request'
    bindings.append(
        bind('language requests', request, REQUEST_TYPE, Source('request'), required=False)
    )
    cancel = '~/language/cancel'
    if any(topic.name.endswith('/language/cancel') for topic in bag.topics):
        bindings.append(bind('language cancels', cancel, STRING_TYPE, Source('cancel'), False))
    return bindings


def find_sources(
    bag: Bag, contract: Contract, *, instruction: str = '', namespace: str = ''
) -> Sources:
    """Bind the bag's topics; instruction is the default that makes the topic optional.

    Raises OxygenError when a required camera, the joint state or the instruction is missing, has
    another type, or is in the bag more than once.
    """
    by_topic, notes = {}, []
    for binding in bind_all(bag, contract, instruction=instruction, namespace=namespace):
        if binding.topic is not None:
            by_topic[binding.topic.name] = binding.source
        elif binding.required:
            raise OxygenError(f'{binding.problem}. The bag has {bag.listing()}')
        else:
            notes.append(binding.problem)
    by_topic.update(_said(bag, namespace))
    return Sources(by_topic, tuple(notes))


def check_joints(bag: Bag, contract: Contract, sources: Sources) -> None:
    """Refuse a bag of another robot: none of its first joint states has the contract's joints.

    Raises OxygenError that names both.
    """
    topic = next(name for name, source in sources.by_topic.items() if source.kind == 'state')
    problem = ''
    for message in islice(bag.messages([topic]), FIRST_STATES):
        try:
            if message.value is not None:
                joint_vector(message.value, contract.state.names)
                return
        except ConversionError as error:
            if error.reason != 'missing_joints':
                return
            problem = str(error)
    if problem:
        raise OxygenError(
            f'bag {bag.path} is of another robot: on {topic} {problem}. Give the contract of the '
            'robot that was recorded with --robot'
        )


def _said(bag: Bag, namespace: str) -> dict[str, Source]:
    """Answers of the node that ran when the bag was recorded, if there was only one."""
    begin = f'/{namespace.strip("/")}/' if namespace.strip('/') else '/'
    found = [
        topic
        for topic in bag.topics
        if topic.type in SAID_TYPES
        and topic.name.startswith(begin)
        and not topic.name.endswith('/language/refused')
    ]
    nodes = {re.sub(r'/(action_chunk|language/\w+)$', '', topic.name) for topic in found}
    if len(nodes) > 1:
        return {}
    return {topic.name: Source(SAID_TYPES[topic.type]) for topic in found}


def type_advice(types: Container[str]) -> str:
    """What to change in the contract when a camera's topic has the other image type."""
    for word, kind in CAMERA_TYPES.items():
        if kind in types:
            return f'; set type: {word} in the contract'
    return ''

"""Which topic of a bag is which input of the contract."""

from __future__ import annotations

from dataclasses import dataclass

from oxygen_ros.replay.bag import REQUEST_TYPE, Bag, Topic
from oxygen_ros.ros.contract import Contract
from oxygen_ros.types import OxygenError

CAMERA_TYPES = {
    'image': 'sensor_msgs/msg/Image',
    'compressed': 'sensor_msgs/msg/CompressedImage',
}
STATE_TYPE = 'sensor_msgs/msg/JointState'
STRING_TYPE = 'std_msgs/msg/String'


@dataclass(frozen=True)
class Source:
    """What a topic of the bag feeds. kind: image, compressed, state, instruction, request, cancel.

    slot is the camera's, '' for the others.
    """

    kind: str
    slot: str = ''


@dataclass(frozen=True)
class Sources:
    """Topics of the bag -> what they feed; notes: what the bag lacks and can do without."""

    by_topic: dict[str, Source]
    notes: tuple[str, ...]


class _Finder:
    """Looks topics up by the contract's names, in a namespace if one is given."""

    def __init__(self, bag: Bag, namespace: str) -> None:
        self._bag = bag
        self._namespace = '/' + namespace.strip('/') if namespace.strip('/') else ''
        self.by_topic: dict[str, Source] = {}
        self.notes: list[str] = []

    def need(self, what: str, name: str, kind: str, source: Source) -> None:
        """Bind a topic that the replay cannot do without."""
        problem = self._bind(what, name, kind, source)
        if problem:
            raise OxygenError(f'{problem}. The bag has {self._bag.listing()}')

    def want(self, what: str, name: str, kind: str, source: Source) -> None:
        """Bind a topic if the bag has it; a note if not."""
        problem = self._bind(what, name, kind, source)
        if problem:
            self.notes.append(problem)

    def _bind(self, what: str, name: str, kind: str, source: Source) -> str:
        """'' when bound; otherwise what is wrong."""
        found = self._matches(name)
        right = [topic for topic in found if topic.type == kind]
        filled = [topic for topic in right if topic.messages] or right
        if len(filled) > 1:
            names = ', '.join(topic.name for topic in filled)
            raise OxygenError(
                f'bag {self._bag.path}: {what} {name} may be any of {names}: '
                'choose with --namespace'
            )
        if not found:
            return f'bag {self._bag.path} lacks {what}: no topic {name} ({kind})'
        if not right:
            given = ', '.join(f'{topic.name} is {topic.type}' for topic in found)
            return f'bag {self._bag.path}: {what} must be {kind}, but {given}{_advice(found)}'
        if not filled[0].messages:
            return f'bag {self._bag.path} lacks {what}: {filled[0].name} has no messages'
        self.by_topic[filled[0].name] = source
        return ''

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


def find_sources(
    bag: Bag, contract: Contract, *, instruction: str = '', namespace: str = ''
) -> Sources:
    """Bind the bag's topics; instruction is the default that makes the topic optional.

    Raises OxygenError when a required camera, the joint state or the instruction is missing, has
    another type, or is in the bag more than once.
    """
    finder = _Finder(bag, namespace)
    for camera in contract.cameras:
        bind = finder.need if camera.required else finder.want
        what = f'camera {camera.slot} of {contract.path or contract.robot}'
        bind(what, camera.topic, CAMERA_TYPES[camera.type], Source(camera.type, camera.slot))
    finder.need('the joint state', contract.state.topic, STATE_TYPE, Source('state'))
    # without the topic a default will do, from the parameters or the contract
    default = instruction or contract.instruction.default
    bind = finder.want if default else finder.need
    bind('the instruction', contract.instruction.topic, STRING_TYPE, Source('instruction'))
    finder.want('language requests', '~/language/request', REQUEST_TYPE, Source('request'))
    if any(topic.name.endswith('/language/cancel') for topic in bag.topics):
        finder.want('language cancels', '~/language/cancel', STRING_TYPE, Source('cancel'))
    return Sources(finder.by_topic, tuple(finder.notes))


def _advice(found: list[Topic]) -> str:
    """What to change in the contract when a camera has the other image type."""
    for word, kind in CAMERA_TYPES.items():
        if any(topic.type == kind for topic in found):
            return f'; set type: {word} in the contract'
    return ''

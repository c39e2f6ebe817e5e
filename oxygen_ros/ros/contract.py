"""A robot's contract: which topics and joints stand for what the checkpoint calls them.

Read from a YAML file (config/robots/demo.yaml explains every key). No rclpy, no torch.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxygen_ros.ros.joints import Joint
from oxygen_ros.ros.yaml_tree import Node, brace, read_yaml
from oxygen_ros.types import OxygenError

CAMERA_TYPES = ('image', 'compressed')
WHEN_EXPIRED = ('hold', 'ramp', 'silence')
WHEN_STOPPED = ('hold', 'silence')
MERGES = ('replace', 'blend', 'average', 'realtime')
# Above 0 by as much as a clock in ns can follow, and below what a message's seconds can hold.
STEP_PERIOD_S = (1e-3, 60.0)
SPAN_S = (1e-3, 3600.0)
SPAN_MS = (1e-3, 3.6e6)
POSITION = (-1e9, 1e9)
LIMIT = (1e-6, 1e9)  # of velocity and acceleration
MAX_BLEND_STEPS = 10_000
MAX_TOPIC_CHARS = 200
# What the node itself publishes and reads in its private namespace, besides ~/language/<task>.
_OWN = tuple(
    f'~/{name}' for name in ('action', 'action_chunk', 'status', 'contract', 'emergency_stop')
)
_TOPIC = re.compile(r'(~/|/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*')


@dataclass(frozen=True)
class Camera:
    """One picture source. slot: the checkpoint's name; type: 'image' or 'compressed'."""

    slot: str
    topic: str
    type: str = 'image'
    required: bool = True


@dataclass(frozen=True)
class State:
    """Where the joint positions come from, in the order of the checkpoint's state."""

    topic: str
    joints: tuple[Joint, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Joint names in the order of the checkpoint's state."""
        return tuple(joint.name for joint in self.joints)


@dataclass(frozen=True)
class Actions:
    """What the columns of a chunk drive, how long its rows count and how chunks are joined.

    when_expired, when_stopped, merge: one of WHEN_EXPIRED, WHEN_STOPPED, MERGES. blend_steps:
    rows over which 'blend' goes over to a new chunk. trajectory_topic: '' is none.
    """

    joints: tuple[Joint, ...]
    step_period_s: float
    valid_for_s: float
    when_expired: str = 'hold'
    ramp_s: float = 0.3
    when_stopped: str = 'hold'
    merge: str = 'replace'
    blend_steps: int = 4
    interpolate: bool = False
    trajectory_topic: str = ''

    @property
    def names(self) -> tuple[str, ...]:
        """Joint names in the order of the checkpoint's actions."""
        return tuple(joint.name for joint in self.joints)


@dataclass(frozen=True)
class Instruction:
    """Where the robot's task comes from; default '' means wait for the topic."""

    topic: str
    default: str = ''


@dataclass(frozen=True)
class Timing:
    """How far apart and how old inputs may be, in milliseconds."""

    sync_tolerance_ms: float = 50.0
    image_max_age_ms: float = 500.0
    state_max_age_ms: float = 200.0


@dataclass(frozen=True)
class Contract:
    """A whole contract. cameras are in the order of the file; path is where it was read."""

    robot: str
    cameras: tuple[Camera, ...]
    state: State
    actions: Actions
    instruction: Instruction
    timing: Timing
    path: str = ''

    @property
    def slots(self) -> tuple[str, ...]:
        """Camera slots in the order of the file."""
        return tuple(camera.slot for camera in self.cameras)


def load_contract(path: str | Path) -> Contract:
    """Read a contract from a file, or by the bare name of one in config/robots.

    Raises OxygenError that names the file, the key and what is allowed.
    """
    file = contract_path(path)
    return _contract(read_yaml(file, 'robot contract'), str(file))


def contract_path(given: str | Path) -> Path:
    """The file meant by a path or by a bare name such as 'demo'. Raises OxygenError."""
    text = str(given)
    if not text.strip():
        raise OxygenError(
            f'robot is empty: set it to a contract file or to one of {_known_names()}'
        )
    if re.fullmatch(r'[A-Za-z0-9_-]+', text):
        for folder in _robot_folders():
            if (folder / f'{text}.yaml').is_file():
                return folder / f'{text}.yaml'
    file = Path(os.path.expanduser(text))
    if not file.is_file():
        raise OxygenError(
            f'robot contract {text} does not exist: '
            f'set robot to a contract file or to one of {_known_names()}'
        )
    return file


def _robot_folders() -> list[Path]:
    """config/robots of the source tree or of the installation prefix, nearest first."""
    here = Path(__file__).resolve()
    folders = [here.parents[2] / 'config' / 'robots']
    folders += [parent / 'share/oxygen_ros/config/robots' for parent in here.parents]
    return [folder for folder in folders if folder.is_dir()]


def _known_names() -> str:
    found = sorted({file.stem for folder in _robot_folders() for file in folder.glob('*.yaml')})
    return brace(found)


def _contract(root: Node, path: str) -> Contract:
    keys = root.mapping(
        ('robot', 'cameras', 'state', 'actions', 'instruction'), optional=('joints', 'timing')
    )
    units = _units(keys['joints']) if 'joints' in keys else {}
    state, actions = _state(keys['state'], units), _actions(keys['actions'], units)
    unused = [name for name in units if name not in (*state.names, *actions.names)]
    if unused:
        raise OxygenError(
            f'{keys["joints"].where} names {brace(unused)}, which are neither in state.joints '
            f'{brace(state.names)} nor in actions.joints {brace(actions.names)}'
        )
    contract = Contract(
        robot=keys['robot'].text(),
        cameras=_cameras(keys['cameras']),
        state=state,
        actions=actions,
        instruction=_instruction(keys['instruction']),
        timing=_timing(keys['timing']) if 'timing' in keys else Timing(),
        path=path,
    )
    refuse_shared_topics(contract)
    return contract


def refuse_shared_topics(contract: Contract, resolve: Callable[[str], str] = str) -> None:
    """Raise OxygenError if two entries name one topic. resolve: a topic's name in the graph."""
    users: dict[str, list[str]] = {}
    for entry, topic in _topics(contract):
        users.setdefault(resolve(topic), []).append(entry)
    for topic, entries in users.items():
        if len(entries) > 1:
            raise OxygenError(
                f'robot contract {contract.path}: {" and ".join(entries)} are the same topic '
                f'{topic}: each needs a topic of its own'
            )


def _topics(contract: Contract) -> Iterator[tuple[str, str]]:
    """Where in the contract a topic is named, and the topic."""
    for camera in contract.cameras:
        yield f'cameras.{camera.slot}.topic', camera.topic
    yield 'state.topic', contract.state.topic
    yield 'instruction.topic', contract.instruction.topic
    if contract.actions.trajectory_topic:
        yield 'actions.trajectory_topic', contract.actions.trajectory_topic
    for topic in _OWN:
        yield "the node's own", topic


def _topic(node: Node) -> str:
    text = node.text()
    if not _TOPIC.fullmatch(text) or len(text) > MAX_TOPIC_CHARS:
        raise node.fail('a topic name such as joint_states or /head/image_raw')
    if text.startswith('~/language/'):
        raise node.fail("outside of ~/language, which is the node's own")
    return text


def _cameras(node: Node) -> tuple[Camera, ...]:
    cameras = []
    for slot, entry in node.children().items():
        keys = entry.mapping(('topic',), optional=('type', 'required'))
        cameras.append(
            Camera(
                slot=slot,
                topic=_topic(keys['topic']),
                type=keys['type'].choice(CAMERA_TYPES) if 'type' in keys else 'image',
                required=keys['required'].flag() if 'required' in keys else True,
            )
        )
    if not any(camera.required for camera in cameras):
        raise OxygenError(f'{node.where} has no camera with required: true, it needs at least one')
    return tuple(cameras)


def _units(node: Node) -> dict[str, Joint]:
    """The block `joints`: name -> joint whose units differ from the checkpoint's."""
    return {name: _joint_units(name, entry) for name, entry in node.children().items()}


def _joint_units(name: str, node: Node) -> Joint:
    limits = ('lower', 'upper', 'max_velocity', 'max_acceleration')
    keys = node.mapping((), optional=('scale', 'offset', 'invert', *limits))
    joint = Joint(
        name,
        scale=keys['scale'].number() if 'scale' in keys else 1.0,
        offset=keys['offset'].number() if 'offset' in keys else 0.0,
        invert=keys['invert'].flag() if 'invert' in keys else False,
        lower=keys['lower'].between(*POSITION) if 'lower' in keys else None,
        upper=keys['upper'].between(*POSITION) if 'upper' in keys else None,
        max_velocity=keys['max_velocity'].between(*LIMIT) if 'max_velocity' in keys else None,
        max_acceleration=(
            keys['max_acceleration'].between(*LIMIT) if 'max_acceleration' in keys else None
        ),
    )
    if problem := joint.problem():
        raise OxygenError(f'{node.where}: {problem}')
    return joint


def _joints(node: Node, units: Mapping[str, Joint]) -> tuple[Joint, ...]:
    names = [entry.mapping(('name',))['name'].text() for entry in node.items()]
    _refuse_twice(node, 'joint', names)
    return tuple(units.get(name, Joint(name)) for name in names)


def _state(node: Node, units: Mapping[str, Joint]) -> State:
    keys = node.mapping(('topic', 'joints'))
    return State(topic=_topic(keys['topic']), joints=_joints(keys['joints'], units))


_ACTION_OPTIONS: Mapping[str, Callable[[Node], Any]] = {
    'when_expired': lambda node: node.choice(WHEN_EXPIRED),
    'ramp_s': lambda node: node.between(*SPAN_S),
    'when_stopped': lambda node: node.choice(WHEN_STOPPED),
    'merge': lambda node: node.choice(MERGES),
    'blend_steps': lambda node: node.count(MAX_BLEND_STEPS),
    'interpolate': Node.flag,
    'trajectory_topic': lambda node: '' if node.value == '' else _topic(node),
}


def _actions(node: Node, units: Mapping[str, Joint]) -> Actions:
    keys = node.mapping(
        ('joints', 'step_period_s', 'valid_for_s'), optional=tuple(_ACTION_OPTIONS)
    )
    options = {name: read(keys[name]) for name, read in _ACTION_OPTIONS.items() if name in keys}
    actions = Actions(
        joints=_joints(keys['joints'], units),
        step_period_s=keys['step_period_s'].between(*STEP_PERIOD_S),
        valid_for_s=keys['valid_for_s'].between(*SPAN_S),
        **options,
    )
    if actions.valid_for_s < actions.step_period_s:
        raise keys['valid_for_s'].fail(f'at least step_period_s ({actions.step_period_s:g})')
    return actions


def _instruction(node: Node) -> Instruction:
    keys = node.mapping(('topic',), optional=('default',))
    default = keys['default'].text(empty=True) if 'default' in keys else ''
    return Instruction(topic=_topic(keys['topic']), default=default)


def _timing(node: Node) -> Timing:
    names = ('sync_tolerance_ms', 'image_max_age_ms', 'state_max_age_ms')
    keys: Mapping[str, Node] = node.mapping((), optional=names)
    return Timing(**{name: child.between(*SPAN_MS) for name, child in keys.items()})


def _refuse_twice(node: Node, what: str, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise OxygenError(f'{node.where} names the {what} {brace(twice)} more than once')

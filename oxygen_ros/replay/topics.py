"""Which topics a recording must hold so that it can be replayed and compared later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oxygen_ros.ros.contract import Contract

# What the node publishes under its own name, beside a topic for each language task.
OUTPUTS = ('action_chunk', 'action', 'status', 'contract', 'language/refused')
ASKED = ('language/request', 'language/cancel')


def topics_to_record(
    contract: Contract,
    tasks: Sequence[str],
    *,
    namespace: str = '',
    node: str = 'oxygen',
    clock: bool = False,
) -> list[str]:
    """Full names: what the node reads, what it answers, and /clock where it is followed."""
    prefix = '/'.join(['', *filter(None, namespace.split('/'))])
    inputs = [camera.topic for camera in contract.cameras]
    inputs += [contract.state.topic, contract.instruction.topic]
    if contract.actions.trajectory_topic:
        inputs.append(contract.actions.trajectory_topic)
    own = [*ASKED, *OUTPUTS, *(f'language/{task}' for task in tasks)]
    names = [_full(name, prefix, node) for name in (*inputs, *(f'~/{name}' for name in own))]
    return [*dict.fromkeys(names), *(['/clock'] if clock else [])]


def record_command(out: Path, topics: Sequence[str], *, sim_time: bool = False) -> list[str]:
    """The command line of `ros2 bag record`: mcap, quickly compressed."""
    options = ['--storage', 'mcap', '--storage-preset-profile', 'zstd_fast']
    options += ['--disable-keyboard-controls']
    options += ['--use-sim-time'] if sim_time else []
    return ['ros2', 'bag', 'record', *options, '--output', str(out), '--topics', *topics]


def _full(name: str, prefix: str, node: str) -> str:
    if name.startswith('/'):
        return name
    return f'{prefix}/{node}/{name[2:]}' if name.startswith('~/') else f'{prefix}/{name}'

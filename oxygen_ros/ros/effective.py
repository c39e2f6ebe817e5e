"""What the node really does, to be read as parameters effective.<option>."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rclpy.node import Node
from rclpy.parameter import Parameter

PREFIX = 'effective.'


class EffectiveParameters:
    """Declared by the node alone, while a checkpoint is loaded. The executor's thread calls it.

    A parameter says what was asked for: device cuda, cpu_threads 0. Its effective one says what
    came of it, and there are some for what only the checkpoint decides.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._writing = False
        for name in _shown(node):  # from a dump of another run
            node.undeclare_parameter(name)

    def show(self, effective: Mapping[str, str]) -> None:
        """These and no others."""
        node, wanted = self._node, {PREFIX + name: text for name, text in effective.items()}
        shown = _shown(node)
        for name in shown - set(wanted):
            node.undeclare_parameter(name)
        changed = [
            Parameter(name, value=wanted[name])
            for name in shown & set(wanted)
            if node.get_parameter(name).value != wanted[name]
        ]
        self._writing = True
        try:
            for name in sorted(set(wanted) - shown):
                node.declare_parameter(name, wanted[name], ignore_override=True)
            node.set_parameters(changed)
        finally:
            self._writing = False

    def refusal(self, name: str) -> str:
        """Why nobody else may set a parameter; '' if it is none of these."""
        if self._writing or not name.startswith(PREFIX):
            return ''
        return f'{name} says what the node really does: set {name.removeprefix(PREFIX)} instead'


def without_effective(names: Iterable[str]) -> set[str]:
    """Names of parameters that can be given."""
    return {name for name in names if not name.startswith(PREFIX)}


def _shown(node: Node) -> set[str]:
    return {name for name in node.list_parameters([], 0).names if name.startswith(PREFIX)}

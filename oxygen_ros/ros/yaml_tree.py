"""A YAML file read strictly: every value knows its place, so that errors can name it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import yaml

from oxygen_ros.types import OxygenError


def brace(names: Iterable[object]) -> str:
    """Names as '{a, b}' for an error text."""
    return '{' + ', '.join(map(str, names)) + '}'


def read_yaml(file: Path, what: str) -> Node:
    """Read a YAML file; what says in errors what the file is. Raises OxygenError."""
    try:
        tree = yaml.load(file.read_text(encoding='utf-8'), Loader=_StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise OxygenError(f'{what} {file} cannot be read: {error}') from error
    except yaml.YAMLError as error:
        text = ' '.join(str(error).split())
        raise OxygenError(f'{what} {file} is not valid YAML: {text}') from error
    return Node(tree, f'{what} {file}')


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice instead of keeping the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [str(self.construct_object(key, deep=True)) for key, _ in node.value]
        twice = [key for key, count in Counter(keys).items() if count > 1]
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f'key {twice[0]!r} is given twice', node.start_mark
            )
        return super().construct_mapping(node, deep=deep)


class Node:
    """One value of the tree. file names the file, key the place in it ('' is the root)."""

    def __init__(self, value: object, file: str, key: str = '') -> None:
        self.value = value
        self.file = file
        self.key = key

    @property
    def where(self) -> str:
        """File and key, for an error text."""
        return f'{self.file}: {self.key}' if self.key else self.file

    def fail(self, wanted: str) -> OxygenError:
        """The error for this value; wanted says what is allowed."""
        given = 'empty' if self.value in (None, '') else repr(self.value)[:80]
        return OxygenError(f'{self.where} is {given}: must be {wanted}')

    def mapping(self, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Node]:
        """Children by key; unknown and missing keys are errors."""
        allowed = [*required, *optional]
        if not isinstance(self.value, dict):
            raise self.fail(f'a mapping with the keys {brace(allowed)}')
        for key in self.value:
            if key not in allowed:
                raise OxygenError(
                    f'{self.where} has the unknown key {key!r}: allowed are {brace(allowed)}'
                )
        for key in required:
            if key not in self.value:
                raise OxygenError(f'{self.where} lacks the key {key!r}')
        return {str(key): self._child(f'.{key}', value) for key, value in self.value.items()}

    def children(self) -> dict[str, Node]:
        """Children of a mapping whose keys the user chooses; at least one."""
        if not isinstance(self.value, dict) or not self.value:
            raise self.fail('a mapping with at least one entry')
        return {str(key): self._child(f'.{key}', value) for key, value in self.value.items()}

    def items(self) -> list[Node]:
        """Entries of a list; at least one."""
        if not isinstance(self.value, list) or not self.value:
            raise self.fail('a list with at least one entry')
        return [self._child(f'[{i}]', value) for i, value in enumerate(self.value)]

    def _child(self, step: str, value: object) -> Node:
        return Node(value, self.file, (self.key + step).removeprefix('.'))

    def text(self, *, empty: bool = False) -> str:
        """A string without blanks around it."""
        if not isinstance(self.value, str) or not (empty or self.value.strip()):
            raise self.fail('a text (quote it if YAML reads it as something else)')
        return self.value.strip()

    def choice(self, allowed: Iterable[str]) -> str:
        """One of some words."""
        allowed = tuple(allowed)
        if self.value not in allowed:
            raise self.fail('one of ' + brace(allowed))
        return str(self.value)

    def flag(self) -> bool:
        """true or false."""
        if not isinstance(self.value, bool):
            raise self.fail('true or false')
        return self.value

    def number(self, allowed: str = 'a finite number such as 0.8 or 1.0e-3') -> float:
        """A finite number; whole numbers are numbers too."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(allowed)
        if not -sys.float_info.max <= value <= sys.float_info.max:
            raise self.fail(allowed)
        return float(value)

    def between(self, low: float, high: float) -> float:
        """A number in a range, both ends included."""
        allowed = f'a number from {low:g} to {high:g}'
        value = self.number(allowed)
        if not low <= value <= high:
            raise self.fail(allowed)
        return value

    def count(self, high: int) -> int:
        """A whole number from 1 to high."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise self.fail(f'a whole number from 1 to {high}')
        return value

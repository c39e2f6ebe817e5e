"""Command line of the tools that take the node's parameters without being a node."""

from __future__ import annotations

import argparse
from typing import Any

import yaml

from oxygen_ros.ros import parameters
from oxygen_ros.types import OxygenError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--params, --checkpoint, --robot and --set, which values_of() reads, and --namespace."""
    parser.add_argument('--params', help="the node's parameter file")
    parser.add_argument('--checkpoint', help='beats the parameter file')
    parser.add_argument('--robot', help='contract file, or the name of one in config/robots')
    parser.add_argument(
        '--set',
        action='append',
        default=[],
        metavar='NAME=VALUE',
        help='any other parameter; beats the parameter file; may be given again',
    )
    parser.add_argument(
        '--namespace', default='', help='of the topics, when there are several robots'
    )


def values_of(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Every parameter: argument beats file beats default; and warnings. Raises OxygenError."""
    values: dict[str, Any] = parameters.check_all({})
    warnings: list[str] = []
    if arguments.params is not None:
        given, warnings = parameters.read_yaml(arguments.params)
        values.update(given)
    changed = dict(_assignment(text) for text in arguments.set)
    values = parameters.check_all({**values, **changed})
    unknown = parameters.unknown_names(changed, parameters.texts(values, 'language_tasks'))
    if unknown:
        raise OxygenError(f'--set: {"; ".join(unknown)}')
    for name in ('checkpoint', 'robot'):
        if getattr(arguments, name) is not None:
            values[name] = parameters.check(name, getattr(arguments, name))
        if not values[name]:
            raise OxygenError(f'{name} is not given: set it in --params or with --{name}')
    return values, warnings


def _assignment(text: str) -> tuple[str, object]:
    """NAME=VALUE of the command line, the value read as YAML."""
    name, equals, value = text.partition('=')
    if not equals:
        raise OxygenError(f'--set {text}: write NAME=VALUE')
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise OxygenError(f'--set {text}: the value is not valid YAML') from error

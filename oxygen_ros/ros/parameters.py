"""Every parameter of the node: one table, from which defaults, checks and descriptors come.

The language tasks' own are in task_parameters. Needs no ROS at import, so that replay reads the
same file with the same checks.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from oxygen_ros.ros import task_parameters
from oxygen_ros.ros.parameter_rows import Row as Row
from oxygen_ros.ros.parameter_rows import Value as Value
from oxygen_ros.ros.parameter_rows import check_row
from oxygen_ros.types import OxygenError

if TYPE_CHECKING:
    from rclpy.node import Node

TABLE: tuple[Row, ...] = (
    Row('checkpoint', '', 'Folder of the checkpoint to load.', path=True),
    Row(
        'robot', '', "Contract file that binds the robot's cameras and joints by name.", path=True
    ),
    Row(
        'autostart',
        False,
        'Configure at start and activate as soon as the weights are loaded.',
        read_only=True,
    ),
    Row(
        'mode',
        'continuous',
        'How tasks share work: isolated (each task prefills for itself), '
        'shared_kv (one prefill, language alone), continuous (language of all frames as one '
        'batch).',
        choices=('isolated', 'shared_kv', 'continuous'),
    ),
    Row(
        'budget',
        '5',
        'Decode steps per frame.',
        pattern=r'\d{1,9}|auto|unlimited',
        pattern_text="a whole number from 0, 'auto' or 'unlimited'",
        live=True,
    ),
    Row(
        'device',
        'cpu',
        'Where the model runs.',
        pattern=r'cpu|cuda(:\d{1,3})?',
        pattern_text="'cpu', 'cuda' or 'cuda:N'",
    ),
    Row('dtype', 'float32', 'Number format of weights and KV.', choices=('float32', 'bfloat16')),
    Row(
        'execution',
        'auto',
        'How the model is run: eager is the reference, fused has fewer kernels, compiled compiles '
        'them (worth its start on a CPU), graphs captures fused ones as CUDA graphs, '
        'compiled_graphs compiled ones; auto is graphs on a GPU and fused elsewhere.',
        choices=('auto', 'eager', 'fused', 'compiled', 'graphs', 'compiled_graphs'),
    ),
    Row(
        'cpu_threads',
        0,
        'Threads of torch on a CPU; 0 leaves the choice to torch. A small model '
        'on few cores is faster with 1.',
        0,
        1024,
    ),
    Row(
        'denoise_steps',
        0,
        'Euler steps of the action expert; 0 takes as many as its makers do.',
        0,
        1000,
    ),
    Row(
        'robot_tag',
        '',
        'Which robot of a checkpoint that has statistics of several; empty if it has one.',
    ),
    Row('seed', 0, 'Seed of the action noise, drawn from (seed, stamp).', 0, 2**32 - 1),
    Row('max_rows', 8, 'Language requests decoded together.', 1, 256),
    Row('max_queue', 32, 'Language requests that may wait for a frame or a row.', 1, 10_000),
    Row('max_prompt_tokens', 64, 'Longest prompt of a language request, in tokens.', 0, 65_536),
    Row('max_new_tokens', 256, 'Longest answer of a language request, in tokens.', 1, 65_536),
    Row('max_kv_mb', 4096, 'KV pool in MB; a pool that needs more is refused.', 1, 10_000_000),
    Row('action_rate_hz', 70.0, 'Rate of ~/action.', 1.0, 1000.0),
    Row(
        'idle_step_period_ms',
        200.0,
        'When no frame comes for this long, pending language gets '
        'the decode budget of one frame, again and again.',
        1.0,
        60_000.0,
        live=True,
    ),
    Row('status_period_s', 1.0, 'Period of ~/status and /diagnostics.', 0.05, 1.0, live=True),
    Row(
        'default_instruction',
        '',
        'Task of the robot until a message on instruction comes.',
        live=True,
    ),
    Row(
        'language_tasks',
        ('conversation', 'memory', 'subtask'),
        'Language tasks with a topic ~/language/<task>.',
        pattern=r'(?!(?:request|cancel|refused)$)[A-Za-z][A-Za-z0-9_]*',
        pattern_text='a list of topic names (letters, digits, _), not request, cancel, refused',
    ),
)
ROWS: Mapping[str, Row] = {row.name: row for row in TABLE}

# Parameters that rclpy itself declares on every node.
OTHERS = frozenset({'use_sim_time', 'start_type_description_service'})

# The names that are fields of PolicyOptions; a test compares their defaults.
POLICY_NAMES = (
    'mode',
    'budget',
    'device',
    'dtype',
    'execution',
    'cpu_threads',
    'denoise_steps',
    'robot_tag',
    'seed',
    'max_rows',
    'max_queue',
    'max_prompt_tokens',
    'max_new_tokens',
    'max_kv_mb',
)


def check(name: str, value: Any) -> Value:
    """The value in its row's type; raises OxygenError that names the parameter."""
    row = row_of(name)
    assert row is not None, f'{name} is no parameter'
    return check_row(row, name, value)


def check_all(values: Mapping[str, Any]) -> dict[str, Value]:
    """Every parameter, checked; those not given have their defaults."""
    checked = {row.name: check(row.name, values.get(row.name, row.default)) for row in TABLE}
    tasks, longest = texts(checked, 'language_tasks'), int(number(checked, 'max_new_tokens'))
    return {**checked, **task_parameters.check_tasks(values, tasks, longest)}


def row_of(name: str) -> Row | None:
    """The row of a parameter, also of tasks.<task>.<field>; None if there is none."""
    return ROWS.get(name) or task_parameters.split(name)[1]


def number(values: Mapping[str, Value], name: str) -> float:
    """A checked numeric parameter as float."""
    value: Any = values[name]
    return float(value)


def texts(values: Mapping[str, Value], name: str) -> tuple[str, ...]:
    """A checked list of texts."""
    value = values[name]
    assert isinstance(value, tuple), f'{name} is no list of texts'
    return value


def policy_options(values: Mapping[str, Value]) -> dict[str, Any]:
    """The fields of PolicyOptions, from checked values."""
    options: dict[str, Any] = {name: values[name] for name in POLICY_NAMES}
    if options['budget'].isdecimal():
        options['budget'] = int(options['budget'])
    options['tasks'] = task_parameters.task_rules(values, texts(values, 'language_tasks'))
    return options


def unknown_names(names: Iterable[str], tasks: Sequence[str]) -> list[str]:
    """One warning for each name that is no parameter, with the nearest that is.

    tasks: the language tasks, which alone have parameters of their own.
    """
    known = {**ROWS, **task_parameters.rows_of(tasks)}
    warnings = []
    for name in sorted(set(names) - set(known)):
        task, near = task_parameters.split(name)[0], difflib.get_close_matches(name, known, n=1)
        hint = f': did you mean {near[0]}?' if near else ': it has no effect'
        if task and task not in tasks:
            hint = f': {task} is not in language_tasks ({", ".join(tasks)})'
        warnings.append(f'unknown parameter {name}{hint}')
    return warnings


def read_yaml(path: str | Path, node: str = 'oxygen') -> tuple[dict[str, Value], list[str]]:
    """Every parameter as the node would have it from this file, and warnings.

    Later sections win over earlier ones, as in ROS. Raises OxygenError.
    """
    given: dict[str, Any] = {}
    for section in _sections(_document(path), node, path):
        given.update(_flat(section))
    values = check_all(given)
    return values, unknown_names(set(given) - OTHERS, texts(values, 'language_tasks'))


def missed_files(arguments: Sequence[str], full_name: str) -> list[str]:
    """A warning for each --params-file of a command line with nothing for the node of this name.

    ROS reads the section `oxygen` only for /oxygen, and passes over it in silence in a namespace.
    """
    warnings = []
    for option, path in zip(arguments, arguments[1:], strict=False):
        if option != '--params-file':
            continue
        document = _document(path)
        keys = [str(key) for key in document] if isinstance(document, Mapping) else []
        if not any('*' in key or f'/{key.lstrip("/")}' == full_name for key in keys):
            warnings.append(
                f'parameter file {path} has nothing for {full_name}, only for {", ".join(keys)}: '
                "put what is meant for every namespace under '/**:'"
            )
    return warnings


def declare(node: Node) -> list[str]:
    """Declare every row on a node made with automatically declared overrides.

    Returns a warning for each override that is no parameter. Values are checked by check_all
    later: a bad one must fail the transition and not the process, hence the dynamic types.
    """
    present = set(node.list_parameters([], 0).names)
    for row in TABLE:
        _declare(node, row.name, row)
    tasks = _tasks_of(node)
    for name, row in task_parameters.rows_of(tasks).items():
        _declare(node, name, row)
    rclpys = {name for name in present if name.startswith('qos_overrides.')} | OTHERS
    return unknown_names(present - rclpys, tasks)


def given(node: Node) -> dict[str, Any]:
    """Every parameter of a node as it is set, unchecked."""
    rows = task_parameters.rows_of(_tasks_of(node))
    for name, row in rows.items():
        if not node.has_parameter(name):  # the task was added since the start
            _declare(node, name, row)
    return {name: node.get_parameter(name).value for name in (*ROWS, *rows)}


def _tasks_of(node: Node) -> tuple[str, ...]:
    """The language tasks as they are set, or none if they cannot be used."""
    try:
        tasks = check('language_tasks', node.get_parameter('language_tasks').value)
    except OxygenError:  # said at configure
        return ()
    assert isinstance(tasks, tuple)
    return tasks


def _declare(node: Node, name: str, row: Row) -> None:
    from rcl_interfaces.msg import ParameterDescriptor

    if node.has_parameter(name):  # from an override, with no description
        node.undeclare_parameter(name)
    node.declare_parameter(
        name,
        list(row.default) if isinstance(row.default, tuple) else row.default,
        ParameterDescriptor(
            description=row.description,
            additional_constraints=row.allowed,
            read_only=row.read_only,
            dynamic_typing=True,
        ),
    )


def _flat(section: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """Nested names joined by dots, as ROS reads a file."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        name = f'{prefix}{key}'
        flat.update(_flat(value, f'{name}.') if isinstance(value, Mapping) else {name: value})
    return flat


def _document(path: str | Path) -> Any:
    try:
        return yaml.safe_load(Path(os.path.expanduser(path)).read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OxygenError(f'parameter file {path} cannot be read: {error}') from error


def _sections(document: Any, node: str, path: str | Path) -> list[Mapping[str, Any]]:
    """The ros__parameters of every key that matches this node, whatever its namespace."""
    found: list[Any] = []
    for key, value in document.items() if isinstance(document, Mapping) else ():
        matches = key == '/**' or str(key).rsplit('/', 1)[-1] in (node, '*', '**')
        if matches and isinstance(value, Mapping):
            found.append(value.get('ros__parameters'))
    if not found or not all(isinstance(section, Mapping) for section in found):
        raise OxygenError(
            f'parameter file {path} has no section for this node: put the '
            f"parameters under '/**:' or '{node}:', then 'ros__parameters:'"
        )
    return found

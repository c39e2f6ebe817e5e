"""Parameters tasks.<task>.<field> of the language tasks: one table for all tasks. No ROS."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from oxygen_ros.ros.parameter_rows import Row, Value, check_row
from oxygen_ros.tasks import TaskRule
from oxygen_ros.types import OxygenError

# The defaults are TaskRule's.
FIELDS: tuple[Row, ...] = (
    Row('prompt', TaskRule.prompt, 'What is asked, also of a request that brings no prompt.'),
    Row(
        'every_frames',
        TaskRule.every_frames,
        'The node itself asks this of each N-th frame; 0 does not.',
        0,
        1_000_000,
    ),
    Row(
        'every_s',
        TaskRule.every_s,
        'The node itself asks this of a frame every so many seconds of the stamps; 0 does not.',
        0.0,
        86_400.0,
    ),
    Row(
        'max_tokens',
        TaskRule.max_tokens,
        'Longest answer to what the node itself asks, in tokens; at most max_new_tokens.',
        1,
        65_536,
    ),
    Row(
        'max_pending',
        TaskRule.max_pending,
        'Unfinished answers beyond which an asking is skipped and counted.',
        1,
        256,
    ),
)
_FIELDS: Mapping[str, Row] = {row.name: row for row in FIELDS}


def split(name: str) -> tuple[str, Row | None]:
    """Task and row of a parameter tasks.<task>.<field>; ('', None) if it is no such name."""
    first, _, rest = name.partition('.')
    task, _, field = rest.partition('.')
    return (task, _FIELDS.get(field)) if first == 'tasks' else ('', None)


def rows_of(tasks: Sequence[str]) -> dict[str, Row]:
    """Full name -> row, of every field of these tasks."""
    return {f'tasks.{task}.{row.name}': row for task in tasks for row in FIELDS}


def check_tasks(
    values: Mapping[str, Any], tasks: Sequence[str], max_new_tokens: int
) -> dict[str, Value]:
    """Every field of these tasks, checked; those not given have their defaults."""
    checked = {
        name: check_row(row, name, values.get(name, row.default))
        for name, row in rows_of(tasks).items()
    }
    for rule in task_rules(checked, tasks):
        if (rule.every_frames or rule.every_s) and rule.max_tokens > max_new_tokens:
            raise OxygenError(
                f'parameter tasks.{rule.task}.max_tokens is {rule.max_tokens}: must be at most '
                f'max_new_tokens ({max_new_tokens})'
            )
    return checked


def task_rules(values: Mapping[str, Any], tasks: Sequence[str]) -> tuple[TaskRule, ...]:
    """The rules that differ from a task's defaults, from checked values."""
    fields = [field.name for field in dataclasses.fields(TaskRule) if field.name != 'task']
    rules = (
        TaskRule(task, **{field: values[f'tasks.{task}.{field}'] for field in fields})
        for task in tasks
    )
    return tuple(rule for rule in rules if rule != TaskRule(rule.task))

"""The replay's report: plain data whose JSON is the same bytes for the same run."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.runner import Answer, Frame, Runner
from oxygen_ros.replay.sources import Sources
from oxygen_ros.ros.contract import Contract
from oxygen_ros.types import OxygenError, PolicyInfo

SCHEMA = 1


def build_report(
    bag: Bag,
    contract: Contract,
    sources: Sources,
    values: Mapping[str, Any],
    runner: Runner,
    notes: list[str],
) -> dict[str, Any]:
    """Everything but wall time. values: the parameters as they were used."""
    return {
        'schema': SCHEMA,
        'settings': _settings(contract, values, runner.policy.info),
        'bag': _bag(bag, sources),
        'frames': [_frame(frame) for frame in runner.frames if frame.chunk is not None],
        'requests': [_answer(answer) for answer in runner.answers],
        'counters': _counters(runner),
        'totals': _totals(runner),
        'notes': [*notes, *runner.warnings],
    }


def to_json(report: Mapping[str, Any]) -> str:
    """One line per frame, request and finding, so that two reports can be compared with diff."""
    parts = []
    for key in sorted(report):
        value = report[key]
        if key in ('frames', 'requests', 'findings') and value:
            rows = ',\n'.join('  ' + _dump(row) for row in value)
            parts.append(f' {_dump(key)}: [\n{rows}\n ]')
        else:
            parts.append(f' {_dump(key)}: {_dump(value)}')
    return '{\n' + ',\n'.join(parts) + '\n}\n'


def check_writable(path: Path) -> None:
    """Refuse an output path before the work is done, not after. Raises OxygenError."""
    if path.is_dir():
        raise OxygenError(f'--json {path} is a folder: give a file')
    folder = path.absolute().parent
    if not folder.is_dir():
        raise OxygenError(f'--json {path}: the folder {folder} does not exist, make it first')
    if not os.access(folder, os.W_OK):
        raise OxygenError(f'--json {path}: the folder {folder} cannot be written')


def write_json(report: Mapping[str, Any], path: Path) -> None:
    """Write the report; a reader never sees half of it."""
    part = path.with_name(path.name + '.part')
    try:
        part.write_text(to_json(report), encoding='utf-8')
        part.replace(path)
    except OSError as error:
        raise OxygenError(f'--json {path} cannot be written: {error}') from error


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _settings(contract: Contract, values: Mapping[str, Any], info: PolicyInfo) -> dict[str, Any]:
    return {
        'parameters': dict(values),
        'effective': dict(info.effective),
        'model': {
            'family': info.family,
            'cameras': info.cameras,
            'horizon': info.horizon,
            'action_dim': info.action_dim,
            'state_dim': info.state_dim,
        },
        'contract': {
            'robot': contract.robot,
            'cameras': {camera.slot: camera.topic for camera in contract.cameras},
            'state_joints': contract.state.names,
            'action_joints': contract.actions.names,
            'step_period_s': contract.actions.step_period_s,
        },
        'timeline': 'record times of the bag; frames are named by the stamp of the newest image',
    }


def _bag(bag: Bag, sources: Sources) -> dict[str, Any]:
    topics = [
        {
            'name': topic.name,
            'type': topic.type,
            'messages': topic.messages,
            'used_as': _used_as(sources, topic.name),
        }
        for topic in bag.topics
    ]
    return {
        'name': bag.name,
        'messages': bag.count,
        'start_ns': bag.start_ns,
        'duration_ns': bag.end_ns - bag.start_ns,
        'topics': topics,
    }


def _used_as(sources: Sources, topic: str) -> str:
    source = sources.by_topic.get(topic)
    return '' if source is None else source.slot or source.kind


def _frame(frame: Frame) -> dict[str, Any]:
    assert frame.chunk is not None
    return {
        'frame': frame.frame,
        'stamp_ns': frame.stamp_ns,
        'time_ns': frame.time_ns,
        'cameras': frame.cameras,
        'actions': _numbers(frame.chunk.actions),
    }


def _numbers(actions: np.ndarray) -> list[list[float]]:
    """float32 [H, A] as the shortest decimals that read back as the same float32."""
    return [[float(str(value)) for value in row] for row in actions.astype(np.float32)]


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        'id': answer.request_id,
        'task': answer.task,
        'prompt': answer.prompt,
        'time_ns': answer.time_ns,
        'frame': answer.frame,
        'stamp_ns': answer.stamp_ns,
        'tokens': answer.tokens,
        'text': answer.text,
        'reason': answer.reason.value if answer.reason else None,
        'detail': answer.detail,
    }


def _counters(runner: Runner) -> dict[str, Any]:
    """Where every image went, and what else was dropped or noticed."""
    buffer = runner.buffer
    dropped: Counter[str] = buffer.dropped + runner.dropped
    return {
        'images_used': buffer.used,
        'images_waiting': buffer.held(),
        'dropped': dict(dropped),
        'events': dict(buffer.events),
        'tasks_skipped': dict(runner.policy.stats.tasks_skipped),
    }


def _totals(runner: Runner) -> dict[str, Any]:
    stats = runner.policy.stats
    reasons = Counter(a.reason.value if a.reason else 'open' for a in runner.answers)
    return {
        'frames': len(runner.frames),
        'chunks': sum(frame.chunk is not None for frame in runner.frames),
        'requests': len(runner.answers),
        'requests_by_end': dict(reasons),
        'tokens': sum(len(answer.tokens) for answer in runner.answers),
        'prefills': stats.prefills,
        'decode_steps': stats.decode_steps,
        'rows_max': stats.rows_max,
        'forks': stats.forks,
        'kv_bytes_copied_between_frames': stats.kv_bytes_copied_between_frames,
        'truncated_instructions': stats.truncated_instructions,
    }

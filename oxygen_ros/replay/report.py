"""The replay's report: plain data whose JSON is the same bytes for the same run.

What this machine took is in a section of its own, `measured`, which is left out unless asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.numbers import rounded_or_none
from oxygen_ros.replay.outcome import Answer, Frame, Outcome
from oxygen_ros.replay.score import reproduction, score
from oxygen_ros.replay.sources import Sources
from oxygen_ros.ros.contract import Contract

SCHEMA = 3
OTHER_FRAMES = (
    'no frame of the recorded node is a frame here: where cameras are out of step, which images '
    'make one frame depends on which camera came first when the node was activated'
)
TIMELINES = {
    'bag': 'record times of the bag; frames are named by the stamp of the newest image',
    'live': "the bag's record times on /clock in real time; frames are named by the stamp of "
    'the newest image',
}


def build_report(
    bag: Bag,
    contract: Contract,
    sources: Sources,
    values: Mapping[str, Any],
    outcome: Outcome,
    notes: Sequence[str],
) -> dict[str, Any]:
    """What came of it, and how. values: the parameters as they were used."""
    problem = outcome.problem or _nothing_answered(outcome)
    recorded_node = reproduction(outcome, contract)
    if recorded_node and recorded_node['chunks'] and not recorded_node['also_here']:
        notes = [*notes, OTHER_FRAMES]
    return {
        'schema': SCHEMA,
        'complete': not problem,
        'problem': problem,
        'settings': _settings(contract, values, outcome),
        'bag': _bag(bag, sources),
        'frames': [_frame(frame, outcome) for frame in outcome.answered],
        'requests': [_answer(answer) for answer in outcome.answers],
        'inputs': outcome.inputs,
        'scores': score(outcome, contract, duration_s(bag)),
        'recorded_node': recorded_node,
        'counters': _counters(outcome),
        'totals': _totals(outcome),
        'notes': [*notes, *outcome.warnings],
    }


def duration_s(bag: Bag) -> float:
    """Seconds from the first to the last message."""
    return (bag.end_ns - bag.start_ns) / 1e9


def _nothing_answered(outcome: Outcome) -> str:
    if outcome.answered:
        return ''
    dropped = ', '.join(f'{n} {reason}' for reason, n in sorted(outcome.dropped.items()))
    return f'no frame was answered; dropped: {dropped or "nothing"}'


def _settings(contract: Contract, values: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    model = outcome.model
    actions = contract.actions
    return {
        'parameters': dict(values),
        'effective': dict(outcome.effective),
        'model': {
            key: model.get(key)
            for key in ('family', 'cameras', 'horizon', 'action_dim', 'state_dim')
        },
        'contract': {
            'robot': contract.robot,
            'cameras': {camera.slot: camera.topic for camera in contract.cameras},
            'state_joints': contract.state.names,
            'action_joints': actions.names,
            'step_period_s': actions.step_period_s,
            'valid_for_s': actions.valid_for_s,
            'merge': actions.merge,
        },
        'timeline': TIMELINES[outcome.timeline],
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


def _frame(frame: Frame, outcome: Outcome) -> dict[str, Any]:
    assert frame.chunk is not None
    seam = outcome.seams.get(frame.frame)
    return {
        'frame': frame.frame,
        'stamp_ns': frame.stamp_ns,
        'time_ns': frame.time_ns,
        'cameras': frame.cameras,
        'seam': None if seam is None else rounded_or_none(seam),
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


def _counters(outcome: Outcome) -> dict[str, Any]:
    """Where every image went, and what else was dropped or noticed."""
    return {
        'images_used': outcome.images.get('used'),
        'images_waiting': outcome.images.get('waiting'),
        'dropped': dict(outcome.dropped),
        'events': dict(outcome.events),
        'tasks_skipped': outcome.skipped,
    }


def _totals(outcome: Outcome) -> dict[str, Any]:
    reasons = Counter(a.reason.value if a.reason else 'open' for a in outcome.answers)
    return {
        'frames': len(outcome.frames),
        'chunks': len(outcome.answered),
        'requests': len(outcome.answers),
        'requests_by_end': dict(reasons),
        'tokens': sum(len(answer.tokens) for answer in outcome.answers),
        **outcome.engine,
    }

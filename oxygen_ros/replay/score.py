"""Scores of a replay: how far chunks are from the recorded motion, from each other, and how old.

All of joints is in robot units. Letters: K frames, H rows of a chunk, A joints.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxygen_ros.replay.numbers import rounded, rounded_or_none, spread
from oxygen_ros.replay.outcome import OTHER_CLOCK_NS, Outcome
from oxygen_ros.ros.contract import Contract
from oxygen_ros.types import Reason


def score(outcome: Outcome, contract: Contract, duration_s: float) -> dict[str, Any]:
    """Every score as plain data; nothing in it depends on the speed of this machine."""
    errors = _errors(outcome, contract)
    names = contract.actions.names
    return {
        'joints': list(names),
        'not_recorded': [name for name in names if errors[name] is None],
        'error': {name: error for name, error in errors.items() if error is not None},
        'streamed': _streamed(outcome, contract),
        'seams': _seams(outcome, contract),
        'chunk_age_ms': _ages(outcome),
        'camera_to_frame_ms': _waits(outcome),
        'language': _language(outcome, duration_s),
    }


def _errors(outcome: Outcome, contract: Contract) -> dict[str, Any]:
    """Joint -> distance of each chunk's rows from the recorded motion when they are due."""
    frames, actions = outcome.answered, contract.actions
    if not frames:
        return dict.fromkeys(actions.names)
    chunks = [frame.chunk.actions for frame in frames if frame.chunk is not None]
    rows = np.arange(len(chunks[0]), dtype=np.int64)
    stamps = np.array([frame.stamp_ns for frame in frames], np.int64)
    due = stamps[:, None] + rows * round(actions.step_period_s * 1e9)  # [K, H]
    segments = np.array([frame.segment for frame in frames])
    found = {}
    for joint, name in enumerate(actions.names):
        predicted = np.array([chunk[:, joint] for chunk in chunks], np.float64)
        recorded = np.full(due.shape, np.nan)
        for segment in np.unique(segments):
            mine = segments == segment
            recorded[mine] = outcome.motion.at(int(segment), joint, due[mine])
        found[name] = _error(predicted - recorded, recorded - recorded[:, :1])
    return found


def _error(error: np.ndarray, moved: np.ndarray) -> dict[str, Any] | None:
    """Numbers of one joint, error and moved [K, H]; None where nothing was recorded.

    moved is the error of a robot that stands still, against which a policy must be measured.
    """
    all_rows = spread(np.abs(error))
    if all_rows is None:
        return None
    known = np.isfinite(error)
    standing = spread(np.abs(np.where(known, moved, np.nan)))
    # a step without any recorded motion is all NaN, which numpy warns of
    by_step = [spread(np.abs(error[:, step])) for step in range(error.shape[1])]
    return {
        **all_rows,
        'bias': rounded(float(error[known].mean())),
        'standing_still': None if standing is None else standing['mean'],
        'by_step': {
            key: [None if step is None else step[key] for step in by_step]
            for key in ('mean', 'p50', 'p90', 'count')
        },
    }


def _streamed(outcome: Outcome, contract: Contract) -> dict[str, Any]:
    """What would be on ~/action, after joining and limits, against the recorded motion."""
    steps = outcome.streamed
    times = np.array(steps.times_ns, np.int64)
    segments = np.array(steps.segments)
    values = np.array(steps.values, np.float64).reshape(len(times), len(contract.actions.names))
    error = {}
    for joint, name in enumerate(contract.actions.names):
        recorded = np.full(times.shape, np.nan)
        for segment in np.unique(segments):
            mine = segments == segment
            recorded[mine] = outcome.motion.at(int(segment), joint, times[mine])
        error[name] = spread(np.abs(values[:, joint] - recorded))
    return {
        'steps': len(times),
        'held_s': rounded(steps.held_s),
        'limited': steps.limited,
        'age_ms': spread(np.array(steps.ages_ns, np.float64) / 1e6),
        'error': {name: numbers for name, numbers in error.items() if numbers is not None},
    }


def _seams(outcome: Outcome, contract: Contract) -> dict[str, Any]:
    """Jumps between consecutive chunks at the moment of their switch, by joint."""
    names, frames = contract.actions.names, sorted(outcome.seams)
    jumps = np.array([outcome.seams[frame] for frame in frames], np.float64)
    if not frames:
        return {'count': 0, 'after_a_gap': outcome.chunk_gaps, 'joints': {}, 'worst': None}
    row, joint = np.unravel_index(int(jumps.argmax()), jumps.shape)
    return {
        'count': len(frames),
        'after_a_gap': outcome.chunk_gaps,
        'joints': {name: spread(jumps[:, k]) for k, name in enumerate(names)},
        'worst': {
            'frame': frames[row],
            'joint': names[joint],
            'jump': rounded(float(jumps[row, joint])),
        },
    }


def _ages(outcome: Outcome) -> dict[str, Any] | None:
    """How old a chunk's frame is when the next chunk takes over, by stamps."""
    stamps = np.array([frame.stamp_ns for frame in outcome.answered], np.int64)
    ages = np.diff(stamps)
    return spread(ages[ages > 0] / 1e6)


def _waits(outcome: Outcome) -> dict[str, Any] | None:
    """From a frame's newest image to its last message in the recorder; None on two clocks."""
    waits = np.array([f.time_ns - f.stamp_ns for f in outcome.frames], np.float64)
    if waits.size and abs(np.median(waits)) > OTHER_CLOCK_NS:
        return None
    return spread(waits / 1e6)


def _language(outcome: Outcome, duration_s: float) -> dict[str, Any]:
    """On the bag's clock: what the decode budget and the rate of frames allow."""
    answers = outcome.answers
    tokens = sum(len(answer.tokens) for answer in answers)
    first = [(a.first_ns - a.time_ns) / 1e6 for a in answers if a.first_ns is not None]
    done = sum(answer.reason in (Reason.STOP, Reason.LENGTH) for answer in answers)
    return {
        'tokens': tokens,
        'tok_per_s': rounded(tokens / duration_s) if duration_s > 0 else None,
        'first_token_ms': spread(first),
        'answers_done': done,
    }


def reproduction(outcome: Outcome, contract: Contract) -> dict[str, Any] | None:
    """The replay against what a node answered when the bag was recorded; None if it is not in.

    equal: chunks whose every number is the same. max_difference: of the others, by joint.
    """
    said = outcome.said
    if not said.chunks and not said.words:
        return None
    mine = {f.stamp_ns: f.chunk.actions for f in outcome.answered if f.chunk is not None}
    both = [stamp for stamp in said.chunks if stamp in mine]
    differences = np.zeros((1, len(contract.actions.names)))
    equal = 0
    for stamp in both:
        here, there = mine[stamp].astype(np.float32), said.chunks[stamp]
        same = here.shape == there.shape and np.array_equal(here, there)
        equal += same
        if not same:
            rows = min(len(here), len(there))
            step = np.abs(here[:rows] - there[:rows]).max(axis=0)
            differences = np.maximum(differences, step[None])
    answers = {answer.request_id: answer.tokens for answer in outcome.answers}
    words = [name for name in said.words if name in answers]
    return {
        'chunks': len(said.chunks),
        'also_here': len(both),
        'equal': int(equal),
        'max_difference': dict(
            zip(contract.actions.names, rounded_or_none(differences[0]), strict=True)
        )
        if both
        else None,
        'answers': len(said.words),
        'answers_also_here': len(words),
        'answers_equal': sum(answers[name] == said.words[name] for name in words),
    }

"""What /diagnostics says: one entry per part of the node, by the names of diagnostic_updater.

`<node>: engine`, `language`, `action stream`, `drops`, and one for each camera and the joint
state. OK, WARN (works, but not as it should) or ERROR (no action can come of this).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from oxygen_ros import msg
from oxygen_ros.ros.diagnostics import Report
from oxygen_ros.ros.input_ages import InputState
from oxygen_ros.ros.messages import key_values, time_msg
from oxygen_ros.ros.word_waits import OVERLOAD

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
RECENT_S = 5.0  # how long something that happened once is shown
# Counted, but no fault: what a node does that is slower than its cameras.
USUAL_DROPS = frozenset(
    {
        'superseded',
        'frame_replaced',
        'repeated_joint_state',
        'reset',
        'chunk_inactive',
        'chunk_outdated',
    }
)
Entry = tuple[str, bytes, str, Mapping[str, object]]


class Health:
    """Makes the messages; remembers the counts of the last ones, for rates and for what is new."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts: dict[str, int] = {}
        self._rose_s: dict[str, float] = {}
        self._last_s = -math.inf
        self._now_s = 0.0

    def message(self, report: Report, status: msg.EngineStatus) -> DiagnosticArray:
        """The whole array of one moment."""
        self._now_s = time.monotonic()
        entries = [_engine(report, status), _language(report, status)]
        entries.append(self._stream(report, status))
        entries += [self._input(state) for state in report.inputs]
        entries.append(self._drops(report))
        self._last_s = self._now_s
        array = DiagnosticArray(status=[self._status(report, *entry) for entry in entries])
        array.header.stamp = time_msg(report.now_ns)
        return array

    def _status(
        self, report: Report, part: str, level: bytes, text: str, values: Mapping[str, object]
    ) -> DiagnosticStatus:
        return DiagnosticStatus(
            level=level,
            name=f'{self._name}: {part}',
            message=text,
            hardware_id=report.robot,
            values=key_values(values),
        )

    def _stream(self, report: Report, status: msg.EngineStatus) -> Entry:
        values = {
            'state': report.stream,
            'rate_hz': status.action_stream_hz,
            'rate_wanted_hz': report.values['action_rate_hz'],
            'missed_ticks': report.missed_ticks,
            **report.motion,
        }
        if not report.stream:
            return 'action stream', OK, 'not active', values
        word, text = report.stream.split(':')[0], report.stream
        level = {'streaming': OK, 'stopped': ERROR}.get(word, WARN)
        self._rise('missed_ticks', report.missed_ticks)
        if self._is_recent('missed_ticks'):
            level = max(level, WARN)
            text = f'{text}; {report.missed_ticks} ticks missed so far'
        if problem := report.problems.get('action stream'):
            level, text = ERROR, f'{problem}; {text}'
        return 'action stream', level, text, values

    def _input(self, state: InputState) -> Entry:
        rate = self._rise(state.name, state.count) / (self._now_s - self._last_s)
        values = {
            'topic': state.topic,
            'rate_hz': round(rate, 1),
            'messages': state.count,
            'age_s': _seconds(state.age_s),
            'stamp_age_s': _seconds(state.stamp_age_s),
            'limit_s': state.limit_s,
            'required': state.required,
        }
        bad = ERROR if state.required else WARN
        if state.age_s is None:
            return state.name, bad, f'nothing on {state.topic} yet', values
        # A negative age is a clock that jumped back.
        if not 0 <= state.age_s <= state.limit_s:
            text = f'{state.topic}: the last is {state.age_s:.2f} s old'
            return state.name, bad, f'{text} (limit {state.limit_s:g} s)', values
        if state.stamp_age_s is not None and state.stamp_age_s > state.limit_s:
            text = f'{state.topic}: what comes is {state.stamp_age_s:.2f} s old by its stamp'
            return state.name, bad, f'{text} (limit {state.limit_s:g} s)', values
        if state.age_s > state.limit_s / 2:
            return state.name, WARN, f'{state.topic}: the last is {state.age_s:.2f} s old', values
        return state.name, OK, f'{rate:.1f} Hz', values

    def _drops(self, report: Report) -> Entry:
        dropped = report.dropped
        for reason, count in dropped.items():
            self._rise(f'dropped {reason}', count)
        new = [
            f'{reason} ({dropped[reason]} so far)'
            for reason in sorted(set(dropped) - USUAL_DROPS)
            if self._is_recent(f'dropped {reason}') and not reason.startswith('skipped_')
        ]
        text = ', '.join(new) or 'nothing out of the ordinary'
        images = {f'images {what}': count for what, count in report.images.items()}
        return 'drops', WARN if new else OK, text, {**images, **dropped}

    def _rise(self, key: str, count: int) -> int:
        """How much a counter grew since the last call; one that was reset grew by what it is."""
        before = self._counts.get(key, 0)
        grown = count - before if count >= before else count
        self._counts[key] = count
        if grown:
            self._rose_s[key] = self._now_s
        return grown

    def _is_recent(self, key: str) -> bool:
        return self._now_s - self._rose_s.get(key, -math.inf) < RECENT_S


def _engine(report: Report, status: msg.EngineStatus) -> Entry:
    level = {'serving': OK, 'inactive': OK, 'failed': ERROR}.get(report.state, WARN)
    if report.state == 'serving' and report.detail:
        level = WARN
    text = f'{report.state}: {report.detail}' if report.detail else report.state
    stats = report.stats
    if 'engine' in report.problems:  # which the detail names
        level = ERROR
    if stats.fallback:
        level, text = max(level, WARN), f'{text}; runs as {stats.execution}: {stats.fallback}'
    values: dict[str, object] = {
        'state': report.state,
        'execution': stats.execution,
        'captures_after_ready': stats.captures_after_ready,
        'frames': status.frames,
        'chunks': status.chunks,
        'frames_per_s': status.frames_per_s,
        'actions_per_s': status.actions_per_s,
        'camera_to_chunk_ms': round(status.camera_to_chunk_ms, 1),
        'rows': status.rows,
        'rows_max': status.rows_max,
        'rows_limit': status.rows_limit,
        'queued': status.queued,
        'queued_limit': report.values['max_queue'],
        'kv_bytes': status.kv_bytes,
        'kv_bytes_limit': status.kv_bytes_limit,
        'kv_percent': round(100 * status.kv_bytes / max(status.kv_bytes_limit, 1), 1),
        'budget': report.values['budget'],
        'budget_used': stats.budget_used,
        'budget_slack': status.budget_left,
        **{f'step_ms {phase}': round(ms, 2) for phase, ms in stats.step_ms.items()},
        **{f'node_overhead_ms_{name}': ms for name, ms in report.overhead_ms.items()},
    }
    return 'engine', level, text, values


def _language(report: Report, status: msg.EngineStatus) -> Entry:
    """What words wait for: WARN where they are shed, or no more can be asked."""
    waits, limit = report.words, int(str(report.values['max_queue']))
    late = waits.now if report.stats.rows_in_use or report.stats.queued else ()
    level = WARN if OVERLOAD in late or status.queued >= limit else OK
    pending = status.rows + status.queued
    text = f'{pending} answers pending' if pending else 'nothing asked'
    values: dict[str, object] = {
        'tokens_per_s': status.tokens_per_s,
        'tokens': status.tokens,
        'requests': status.requests,
        'waits_for': ', '.join(late),
        **{f'waited_s {reason}': round(s, 2) for reason, s in waits.seconds.items()},
        **{f'ended {reason}': count for reason, count in report.stats.requests_ended.items()},
        **{f'skipped {task}': count for task, count in report.stats.tasks_skipped.items()},
    }
    return 'language', level, f'{text}: {", ".join(late)}' if late else text, values


def _seconds(age_s: float | None) -> object:
    return 'never' if age_s is None else round(age_s, 3)

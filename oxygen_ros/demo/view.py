"""Subscribes to the node and shows what it does: a live view on a terminal, else a line a second.

    python -m oxygen_ros.demo.view --source world --seconds 15 --json FILE

Ends after so many seconds of serving, counted from the first chunk. Exit status 0, or 1 when no
chunk or no finished answer came.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import rclpy
from rclpy.node import Node

from oxygen_ros import msg
from oxygen_ros.demo.measures import Measures
from oxygen_ros.demo.table import Table
from oxygen_ros.ros import process, qos

TASKS = ('subtask', 'conversation', 'memory')
START_LIMIT_S = 120.0
DRAW_PERIOD_S = 0.2
LAST_STATUS_LIMIT_S = 3.0
# What drives the node -> what its words are worth.
NOTES = {
    'world': 'a small trained model moves the arm; the words are about what it sees',
    'bag': 'random weights: the words mean nothing',
}


class Screen:
    """Draws measures; on a terminal over its last drawing, else one line a second."""

    def __init__(
        self, measures: Measures, seconds: float, note: str, table: Table | None = None
    ) -> None:
        self._measures = measures
        self.seconds = seconds
        self._note = note
        self._table = table
        self._terminal = sys.stdout.isatty()
        self._drawn = 0  # lines on the terminal that will be drawn over
        self._next_line_s = 0.0

    def draw(self) -> None:
        """Show the present; call it a few times a second."""
        if self._terminal:
            self._draw_block()
        elif time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + 1.0
            print(self._line(), flush=True)

    def _draw_block(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        lines = [line[:width] for line in self._block(width)]
        if self._table is not None:
            lines = [*self._table.lines(), self._table.line()[:width], '', *lines]
        up = f'\x1b[{self._drawn}A' if self._drawn else ''
        sys.stdout.write(up + ''.join(f'\x1b[2K{line}\n' for line in lines))
        sys.stdout.flush()
        self._drawn = len(lines)

    def _block(self, width: int) -> list[str]:
        shown, live, status = self._measures, self._measures.live, self._measures.status
        lines = [
            f'oxygen_ros demo   {shown.serving_s():4.0f} of {self.seconds:.0f} s   {self._note}',
            '',
            f'  frames/s {live.chunks.rate():5.0f}   actions/s {live.actions.rate():5.0f}   '
            f'action stream {live.stream.rate():4.0f} Hz   tok/s {live.tokens.rate():5.0f}',
            f'  {_engine(status)}   answers {shown.requests_done()}',
            '',
        ]
        for task, answer in shown.answers.items():
            head = f'  {task:<13}'
            room = max(width - len(head) - 1, 10)
            lines.append(head + answer.text.replace('\n', ' ')[-room:])
        return [*lines, '']

    def _line(self) -> str:
        shown, live = self._measures, self._measures.live
        status = shown.status
        if not shown.chunks:
            told = f'{status.state}: {status.detail}' if status else 'starting'
            return f'waiting for the node ({told})'
        task, answer = max(shown.answers.items(), key=lambda item: item[1].frame)
        line = (
            f'{shown.serving_s():3.0f} s  frames/s {live.chunks.rate():.0f}  actions/s '
            f'{live.actions.rate():.0f}  stream {live.stream.rate():.0f} Hz  tok/s '
            f'{live.tokens.rate():.0f}  {_engine(status)}  {task}: …{answer.text[-40:]}'
        )
        return line if self._table is None else f'{line}  {self._table.line()}'


class View:
    """The subscriptions that feed the measures."""

    def __init__(self, node: Node, measures: Measures) -> None:
        def now_ns() -> int:
            return node.get_clock().now().nanoseconds

        create = node.create_subscription
        create(
            msg.ActionChunk,
            'oxygen/action_chunk',
            lambda chunk: measures.on_chunk(chunk, now_ns()),
            qos.CHUNK,
        )
        create(msg.ActionStep, 'oxygen/action', lambda _: measures.on_step(now_ns()), qos.ACTION)
        create(msg.EngineStatus, 'oxygen/status', measures.on_status, qos.STATUS)
        for task in TASKS:
            create(msg.LanguageToken, f'oxygen/language/{task}', measures.on_token, qos.TOKEN)


def main(argv: Sequence[str] | None = None) -> int:
    """Show the node until the time is over or a signal comes."""
    parser = argparse.ArgumentParser(prog='oxygen_ros.demo.view', description=__doc__)
    parser.add_argument('--source', choices=tuple(NOTES), default='world')
    parser.add_argument('--seconds', type=float, default=15.0)
    parser.add_argument('--json', type=Path, required=True, help='where the numbers go')
    given = parser.parse_args(argv)
    stop = process.stop_on_signals()
    process.init_rclpy([])
    node = rclpy.create_node('view')
    measures = Measures(TASKS)
    View(node, measures)
    table = Table(node) if given.source == 'world' else None
    spinner = process.Spinner(node, stop)
    print(f'Note: {NOTES[given.source]}.', flush=True)
    _watch(measures, Screen(measures, given.seconds, NOTES[given.source], table), stop)
    spinner.close()
    node.destroy_node()
    rclpy.try_shutdown()
    summary = {**measures.summary(), **(table.summary() if table else {})}
    given.json.write_text(json.dumps(summary), encoding='utf-8')
    return 0 if summary['chunks'] and summary['requests_done'] else 1


def _watch(measures: Measures, screen: Screen, stop: threading.Event) -> None:
    """Draw until the screen's time was served, nothing came for too long, or stop."""
    give_up_s = time.monotonic() + START_LIMIT_S
    while measures.serving_s() < screen.seconds and not stop.wait(DRAW_PERIOD_S):
        screen.draw()
        if time.monotonic() > give_up_s + measures.serving_s():
            print(f'view: served for {measures.serving_s():.0f} s only, giving up')
            return
    measures.close()
    deadline = time.monotonic() + LAST_STATUS_LIMIT_S
    while not measures.complete() and time.monotonic() < deadline and not stop.wait(0.05):
        pass


def _engine(status: msg.EngineStatus | None) -> str:
    if status is None:
        return 'rows -   KV -'
    used, limit = status.kv_bytes / 2**20, status.kv_bytes_limit / 2**20
    return (
        f'rows {status.rows} of {status.rows_limit} (most {status.rows_max})   '
        f'KV {used:.2f} of {limit:.2f} MB'
    )


if __name__ == '__main__':
    sys.exit(main())

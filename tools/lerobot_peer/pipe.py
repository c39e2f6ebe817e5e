"""Requests to a worker process and its answers, one JSON object a line; tensors go by file.

Standard library only: both environments import this.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any


class WorkerFailed(Exception):
    """What a worker says, or that it has ended."""


class Worker:
    """A process that does one thing at a time and is idle in between."""

    def __init__(self, command: list[str], variables: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        # Without buffers, so that nothing is left to be written to a worker that has ended.
        self._process = subprocess.Popen(
            command, bufsize=0, env=dict(variables), stdin=pipe, stdout=pipe
        )

    def ask(self, what: str, **values: Any) -> dict[str, Any]:
        """Have something done and wait for the answer. Raises WorkerFailed."""
        assert self._process.stdin and self._process.stdout
        request = json.dumps({'what': what, **values}) + '\n'
        with contextlib.suppress(BrokenPipeError):  # the empty answer says that it has ended
            self._process.stdin.write(request.encode())
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f'{what}: the worker ended with code {self._process.wait()}')
        answer = json.loads(line)
        if 'failed' in answer:
            raise WorkerFailed(f'{what}: {answer["failed"]}')
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(handlers: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer requests until standard input ends; whatever else prints goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = handlers[request.pop('what')](**request)
        except Exception as error:  # the caller decides whether to go on
            traceback.print_exc()
            answer = {'failed': f'{type(error).__name__}: {error}'}
        answers.write(json.dumps(answer) + '\n')
        answers.flush()

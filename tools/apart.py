"""A function in a process of its own: a crash, a hang or a spoiled GPU ends nothing else."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from oxygen_ros.engine.execution import reason_of


def apart(function: Callable[[], Any], seconds: float) -> Any:
    """Its result, or a dictionary with an 'error'.

    The process is a fork: the caller must not have used a GPU, nor several threads.
    """
    forks = multiprocessing.get_context('fork')
    mine, its = forks.Pipe(duplex=False)
    process = forks.Process(target=_send, args=(its, function), daemon=True)
    process.start()
    its.close()
    try:
        found = mine.recv() if mine.poll(seconds) else {'error': f'nothing after {seconds:.0f} s'}
    except EOFError:
        process.join()
        found = {'error': f'its process ended with code {process.exitcode}'}
    process.kill()
    process.join()
    return found


def _send(its: Connection, function: Callable[[], Any]) -> None:
    try:
        found = function()
    except Exception as error:  # whatever a GPU may raise is a result too
        traceback.print_exc()
        found = {'error': reason_of(error)}
    its.send(found)

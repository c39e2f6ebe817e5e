"""The newest frame that waits for the engine, made ready by a second thread during its steps.

A frame is in one place at a time: waiting, in preparation, or taken, which makes it the worker's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oxygen_ros.types import Observation

if TYPE_CHECKING:
    from oxygen_ros.policy import PreparedFrame

    Prepare = Callable[[Observation], PreparedFrame]


@dataclass(eq=False)
class Frame:
    """An observation that was handed in, times on the steady clock.

    arrived_s: when the callback of its last message began. handed_s: when it was handed in.
    ready: filled by the second thread, if that has begun with it.
    """

    observation: Observation
    arrived_s: float
    handed_s: float
    ready: Future[PreparedFrame] | None = None

    def to_observe(self) -> Observation | PreparedFrame:
        """For the policy; waits for a preparation under way and raises what that raised."""
        return self.observation if self.ready is None else self.ready.result()


class Inbox:
    """Holds one waiting frame and one in preparation. Thread-safe."""

    def __init__(self, on_replaced: Callable[[], None]) -> None:
        """on_replaced: a newer frame took another's place; on the thread that made it so."""
        self._on_replaced = on_replaced
        self._changed = threading.Condition()  # only the second thread waits for it
        self._waiting: Frame | None = None
        self._preparing: Frame | None = None
        self._stepping = False
        self._open = True

    def __bool__(self) -> bool:
        with self._changed:
            return self._waiting is not None or self._preparing is not None

    def put(self, frame: Frame) -> None:
        """Hand in a frame instead of the one that waits."""
        with self._changed:
            replaced, self._waiting = self._waiting, frame
            if self._stepping:  # an idle worker is not to be held up by the second thread
                self._changed.notify()
        if replaced is not None:
            self._on_replaced()

    def take(self) -> Frame | None:
        """The frame in preparation, which is nearest to its chunk, or else the one that waits."""
        with self._changed:
            frame = self._preparing or self._waiting
            if frame is self._preparing:
                self._preparing = None
            else:
                self._waiting = None
            return frame

    def clear(self) -> None:
        """Forget both."""
        with self._changed:
            self._waiting = self._preparing = None

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """While inside, the engine is busy and the second thread prepares what waits."""
        with self._changed:
            self._stepping = True
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._stepping = False

    @contextmanager
    def preparing(self, prepare: Prepare) -> Iterator[None]:
        """Run the second thread while inside."""
        thread = threading.Thread(
            target=self._prepare_all, args=(prepare,), name='oxygen_prepare', daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._open = False
                self._changed.notify()
            thread.join()

    def _prepare_all(self, prepare: Prepare) -> None:
        while self._prepare_next(prepare):
            pass

    def _prepare_next(self, prepare: Prepare) -> bool:
        """Wait for a frame to prepare and do it; False to end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open or self._may_prepare())
            frame = self._waiting
            if not self._open or frame is None:
                return False
            ready = frame.ready = Future()
            self._preparing, self._waiting = frame, None
        try:
            ready.set_result(prepare(frame.observation))
        except Exception as error:  # raised again where the frame is taken, so it must stay
            ready.set_exception(error)
        else:
            self._put_back(frame)
        return True

    def _may_prepare(self) -> bool:
        raw = self._waiting is not None and self._waiting.ready is None
        return self._stepping and raw and self._preparing is None

    def _put_back(self, frame: Frame) -> None:
        """Let a prepared frame wait, unless it was taken, forgotten, or a newer one waits."""
        with self._changed:
            if self._preparing is not frame:
                return
            self._preparing = None
            replaced = self._waiting is not None
            if not replaced:
                self._waiting = frame
        if replaced:
            self._on_replaced()

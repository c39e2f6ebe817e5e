"""The thread that owns the policy: observations and requests in, chunks and words out.

Who touches what: only the worker's thread calls the policy, but for prepare(), which a second
thread may call meanwhile. The newest frame has a lock of its own (see inbox); a bounded list of
commands and the snapshot are guarded by one condition. Outputs are handed to the listener on the
worker's thread, one by one, before the next step runs.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from oxygen_ros.ros.answers import Answers
from oxygen_ros.ros.diagnostics import Spread
from oxygen_ros.ros.inbox import Frame, Inbox
from oxygen_ros.ros.step_watch import StepWatch
from oxygen_ros.ros.word_waits import WordWaits
from oxygen_ros.types import (
    ActionChunk,
    EngineStats,
    FrameDropped,
    LanguageRequest,
    Observation,
    Overlap,
    OxygenError,
    PolicyInfo,
    Reason,
    TokenDelta,
)

if TYPE_CHECKING:
    from oxygen_ros.policy import Policy

WORDS_AT_LEAST_S = 0.1  # between two steps of words when frames leave no time for them

Progress = Callable[[float], None]
Command = Callable[['Policy'], object]


class Listener(Protocol):
    """Who is told, on the worker's thread; on_dropped and on_token also on others."""

    def on_loaded(self, info: PolicyInfo) -> None:
        """The weights are loaded and warmed up."""

    def on_failed(self, text: str) -> None:
        """The policy could not be made, or broke; the worker has ended."""

    def on_chunk(self, chunk: ActionChunk) -> None:
        """A frame was answered."""

    def on_token(self, delta: TokenDelta) -> None:
        """A word came, or a request ended."""

    def on_dropped(self, reason: str, text: str) -> None:
        """Something was dropped; text says what was wrong with it, or is empty."""


@dataclass(frozen=True)
class Snapshot:
    """What the worker is doing. state: loading, warming_up, ready, failed or stopped."""

    state: str = 'loading'
    detail: str = 'about to read the weights'
    stats: EngineStats = field(default_factory=EngineStats)


def engine_leaves_the_cpu(info: PolicyInfo) -> bool:
    """Whether preparing beside the engine pays: on a CPU both want the same cores."""
    return not info.effective['device'].startswith('cpu')


class _Stopped(BaseException):
    """Leaves a load from inside its progress callback."""


class Worker:
    """Makes a policy and steps it while there is work; sleeps otherwise."""

    def __init__(
        self,
        make_policy: Callable[[Progress], Policy],
        listener: Listener,
        *,
        idle_period_s: float,
        max_commands: int,
        overlap: Callable[[Observation], Overlap | None] = lambda observation: None,
        prepare_ahead: Callable[[PolicyInfo], bool] = engine_leaves_the_cpu,
    ) -> None:
        self._make_policy = make_policy
        self._listener = listener
        self._idle_period_s = idle_period_s
        self._max_commands = max_commands
        self._overlap = overlap  # what a frame's chunk is to continue; on the worker's thread
        self._prepare_ahead = prepare_ahead  # of the next frame, on a second thread
        self._condition = threading.Condition()
        self._inbox = Inbox(lambda: listener.on_dropped('frame_replaced', ''))
        self._commands: deque[Command] = deque()
        self._change: Command | None = None  # of options, the newest wins
        self._outdated = False  # the step under way began before a reset
        self._free_s = 0.0  # when the engine's last step ended
        self._before = (-1, 0.0)  # number of the frame the engine has, s the node took before it
        self.overhead_ms = Spread()  # what the node added around the engine, per answered frame
        self.words = WordWaits()
        self.watch = StepWatch()
        self._answers = Answers()
        self._stopping = False
        self._snapshot = Snapshot()
        self._thread = threading.Thread(target=self._run, name='oxygen_worker', daemon=True)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end and wait for it; False if it is still inside a step.

        Requests that are open by then are told so here, on the caller's thread.
        """
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._end_answers(Reason.CANCELLED, 'the node was cleaned up')
        return not self._thread.is_alive()

    @property
    def snapshot(self) -> Snapshot:
        """A consistent view, from any thread."""
        with self._condition:
            return self._snapshot

    @property
    def outdated(self) -> bool:
        """Whether what is being handed out began before a reset."""
        with self._condition:
            return self._outdated

    def observe(self, observation: Observation, arrived_s: float | None = None) -> None:
        """Hand in a frame; one that still waits is replaced and counted.

        arrived_s: when the callback of its last message began, on the steady clock.
        """
        now_s = time.monotonic()
        self._inbox.put(Frame(observation, now_s if arrived_s is None else arrived_s, now_s))
        with self._condition:
            self._condition.notify()

    def submit(self, request: LanguageRequest) -> bool:
        """Hand in a request for the next frame; False if the inbox is full or it has ended."""
        return self._command(lambda policy: policy.submit(request), request)

    def cancel(self, request_id: str) -> bool:
        """End a request, or all for ''; False if the inbox is full."""
        return self._command(lambda policy: policy.cancel(request_id))

    def reset(self) -> None:
        """New episode: everything that waits is forgotten, everything that runs is cancelled."""
        with self._condition:
            self._inbox.clear()
            self._outdated = True
            self._commands.append(lambda policy: policy.reset())
            self._condition.notify()

    def change(self, idle_period_s: float, change: Command) -> None:
        """Another idle period, and a change of the policy before its next step."""
        with self._condition:
            self._idle_period_s, self._change = idle_period_s, change
            self._condition.notify()

    def _command(self, command: Command, request: LanguageRequest | None = None) -> bool:
        with self._condition:
            ended = self._snapshot.state in ('failed', 'stopped')
            if ended or len(self._commands) >= self._max_commands:
                return False
            if request is not None:
                self._answers.asked(request)
            self._commands.append(command)
            self._condition.notify()
        return True

    def _run(self) -> None:
        try:
            policy = self._make_policy(self._on_progress)
            self._publish('ready', '', policy.stats)
            self._listener.on_loaded(policy.info)
            ahead = self._prepare_ahead(policy.info)
            with self._inbox.preparing(policy.prepare) if ahead else nullcontext():
                self._serve(policy)
            self._publish('stopped', '')
        except _Stopped:
            self._publish('stopped', '')
        except OxygenError as error:
            self._fail(str(error))
        except Exception as error:  # the node must outlive whatever breaks in a model
            self._fail(f'{type(error).__name__}: {error}\n{traceback.format_exc()}')

    def _fail(self, text: str) -> None:
        self._publish('failed', text)
        self._listener.on_failed(text)
        self._end_answers(Reason.FAILED, f'the engine broke: {text.splitlines()[0]}')

    def _end_answers(self, reason: Reason, text: str) -> None:
        for delta in self._answers.end(reason, text):
            self._listener.on_token(delta)

    def _serve(self, policy: Policy) -> None:
        answered = False  # the last step answered a frame
        words_s = time.monotonic()  # when the last step of words ended
        while self._wait_for_work(policy):
            self.watch.begin()
            self.words.slept(policy.stats)
            with self._condition:
                commands, self._commands = self._commands, deque()
                change, self._change = self._change, None
                self._outdated = False
            for command in (*commands, change) if change else commands:
                command(policy)
            # Overload sheds words first: while frames always wait, words get one step between two
            # of them now and then, so that they are not starved for ever. Then it sheds frames.
            starved = answered and time.monotonic() - words_s > WORDS_AT_LEAST_S
            if not starved or policy.idle:
                self._take_frame(policy)
            with self._inbox.stepping():
                outputs = policy.step()
                self._free_s = time.monotonic()
                for output in outputs:
                    self._hand_out(output)
            answered = any(isinstance(output, ActionChunk) for output in outputs)
            if not answered:
                words_s = self._free_s
            stats = policy.stats
            self.words.stepped(stats, answered)
            self._publish('ready', '', stats)
            self.watch.end()

    def _wait_for_work(self, policy: Policy) -> bool:
        """Sleep until there is work; False to end. Grants budget when no frame comes."""
        deadline = time.monotonic() + self._idle_period_s
        while True:
            with self._condition:
                if self._stopping:
                    return False
                if self._commands or self._change or self._inbox:
                    return True
                if not policy.idle:
                    return True
                remaining = deadline - time.monotonic()
                if remaining > 0:
                    self._condition.wait(remaining)
                    continue
            policy.grant()
            deadline += self._idle_period_s

    def _take_frame(self, policy: Policy) -> None:
        frame = self._inbox.take()
        if frame is None:
            return
        waited_s = max(frame.handed_s, self._free_s) - frame.handed_s  # for the busy engine
        taken_s = time.monotonic() - frame.arrived_s - waited_s
        try:
            given = frame.to_observe()
            number = policy.observe(given, overlap=self._overlap(frame.observation))
            self._before = (number, taken_s)
        except OxygenError as error:
            self._listener.on_dropped('frame_refused', str(error))

    def _hand_out(self, output: ActionChunk | FrameDropped | TokenDelta) -> None:
        if isinstance(output, ActionChunk) and self._outdated:
            self._listener.on_dropped('chunk_outdated', '')
        elif isinstance(output, ActionChunk):
            self._listener.on_chunk(output)
            number, before_s = self._before
            if number == output.frame:
                self.overhead_ms.add((before_s + time.monotonic() - self._free_s) * 1e3)
        elif isinstance(output, FrameDropped):
            self._listener.on_dropped('frame_failed', f'frame {output.frame}: {output.problem}')
        elif self._answers.said(output):
            self._listener.on_token(output)

    def _on_progress(self, fraction: float) -> None:
        if self._stopping:
            raise _Stopped
        if fraction < 1.0:
            self._publish('loading', f'{fraction:.0%} of the weights')
        else:
            self._publish('warming_up', 'the first frame takes longer')

    def _publish(self, state: str, detail: str, stats: EngineStats | None = None) -> None:
        with self._condition:
            self._snapshot = replace(
                self._snapshot, state=state, detail=detail, stats=stats or self._snapshot.stats
            )

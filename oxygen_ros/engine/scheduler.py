"""What to do next: a frame first, then what the budget allows: admissions, decode steps.

Deciding only: no tensors. A plan is one unit of work, so that a new frame, a cancel or a deadline
never waits longer than one admission or decode step.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from oxygen_ros.engine.budget import APPEND, DECODE, PREFILL, Budget, Work
from oxygen_ros.engine.kv_ledger import ACTION, KVLedger
from oxygen_ros.engine.request import FrameState, Limits, Mode, Phase, RequestState
from oxygen_ros.types import Reason


@dataclass(frozen=True)
class Serve:
    """Prefill a frame into a row and run its action task."""

    frame: FrameState
    row: int


@dataclass(frozen=True)
class Admit:
    """Give a request its first token: prefix into `row` if need be, then its prompt's words.

    prefill: compute the prefix anew (isolated). fork_from: copy the prefix from that row, which
    holds source_frame.
    """

    request: RequestState
    row: int
    prefill: bool
    fork_from: int | None = None
    source_frame: int | None = None


@dataclass(frozen=True)
class Decode:
    """One token for each of these requests."""

    requests: tuple[RequestState, ...]


Plan = Serve | Admit | Decode


class Scheduler:
    """Owns frames, requests and the ledger's entries; the engine runs its plans and commits."""

    def __init__(self, mode: Mode, limits: Limits, budget: Budget, ledger: KVLedger) -> None:
        self.mode = mode
        self.limits = limits
        self.budget = budget
        self.ledger = ledger
        self.frame: FrameState | None = None  # waits for its turn
        self.queue: list[RequestState] = []  # no frame yet; by priority, then arrival
        self.live: list[RequestState] = []  # attached or decoding, in the order of admission

    # -- what comes in

    def offer(self, frame: FrameState, now: int) -> FrameState | None:
        """Make this the next frame; returns the one it replaces."""
        replaced, self.frame = self.frame, frame
        self.budget.frame_arrived(now)
        return replaced

    def refusal(self, request: RequestState) -> str:
        """Why a request cannot be taken, or an empty string."""
        asked, limits = request.request, self.limits
        if problem := asked.problem():
            return problem
        if any(other.id == request.id for other in [*self.queue, *self.live]):
            return f'request_id {request.id!r} is in use by an unfinished request: choose another'
        if asked.max_tokens > limits.max_new_tokens:
            return (
                f'max_tokens is {asked.max_tokens}: at most {limits.max_new_tokens} are allowed '
                '(parameter max_new_tokens)'
            )
        if len(request.prompt_tokens) > limits.max_prompt_tokens:
            return (
                f'prompt has {len(request.prompt_tokens)} tokens: at most '
                f'{limits.max_prompt_tokens} are allowed (parameter max_prompt_tokens)'
            )
        if len(self.queue) >= limits.max_queue:
            return (
                f'{len(self.queue)} requests wait already: try again later, or raise '
                'parameter max_queue'
            )
        return ''

    def submit(self, request: RequestState) -> None:
        """Queue a request that refusal() found nothing against."""
        bisect.insort(self.queue, request, key=lambda r: (-r.request.priority, r.order))

    def cancel(self, request_id: str) -> int:
        """Mark one request, or all for '', to end at the next step boundary."""
        chosen = [
            r
            for r in [*self.queue, *self.live]
            if not r.cancelled and (not request_id or r.id == request_id)
        ]
        for request in chosen:
            request.cancelled = True
        return len(chosen)

    # -- schedule

    def due_to_end(self, now: int) -> list[tuple[RequestState, Reason]]:
        """Requests that were cancelled or whose deadline passed."""
        due = []
        for request in [*self.queue, *self.live]:
            if request.cancelled:
                due.append((request, Reason.CANCELLED))
            elif request.deadline_ns is not None and now >= request.deadline_ns:
                due.append((request, Reason.EXPIRED))
        return due

    def schedule(self, steady: int) -> Plan | None:
        """The next unit of work, with its rows booked; None when nothing is due."""
        if self.frame is not None:
            return self._serve()
        work = self._words(steady)
        return self._admit(work) if isinstance(work, RequestState) else work

    def has_work(self, now: int, steady: int) -> bool:
        """Whether schedule() would find anything, or a request is due to end."""
        if self.frame is not None or self.due_to_end(now):
            return True
        return self._words(steady) is not None

    @property
    def to_admit(self) -> tuple[RequestState, ...]:
        """Requests with a frame that may be admitted as soon as the budget allows it."""
        if not self.mode.batch and any(r.phase is Phase.DECODING for r in self.live):
            return ()
        return tuple(r for r in self.live if r.phase is Phase.ATTACHED)

    def _words(self, steady: int) -> RequestState | Decode | None:
        """A request to admit, or a decode step: a step may fit where an admission does not."""
        for request in self.to_admit[:1]:
            if self.budget.allows(steady, self._admission(request)):
                return request
        decoding = tuple(r for r in self.live if r.phase is Phase.DECODING)
        if decoding and self.budget.allows(steady, Work(DECODE, len(decoding))):
            return Decode(decoding)
        return None

    def _admission(self, request: RequestState) -> Work:
        kind = APPEND if self.mode.share_prefill else PREFILL
        return Work(kind, len(request.prompt_tokens))

    def _serve(self) -> Serve:
        frame, self.frame = self.frame, None
        assert frame is not None
        row = self.ledger.acquire(frame.number, ACTION)
        room = self.limits.max_rows - len(self.live)
        taken, self.queue = self.queue[:room], self.queue[room:]
        for request in taken:
            request.phase = Phase.ATTACHED
            request.frame = frame
            if self.mode.share_prefill:
                request.source_row = row
                self.ledger.hold(row, request.id)
        self.live += taken
        return Serve(frame, row)

    def _admit(self, request: RequestState) -> Admit:
        """Book the row a request will write to: the frame's own, if nobody writes there."""
        assert request.frame is not None
        source, number = request.source_row, request.frame.number
        if source is None:
            plan = Admit(request, self.ledger.acquire(number, request.id), prefill=True)
        elif self.ledger[source].writer is None:
            plan = Admit(request, source, prefill=False)
        else:
            frame = self.ledger[source].frame
            row = self.ledger.acquire(number, request.id)
            plan = Admit(request, row, prefill=False, fork_from=source, source_frame=frame)
        self.ledger.set_writer(plan.row, request.id)
        request.row = plan.row
        return plan

    # -- commit

    def served(self, plan: Serve, prefix: int, steady: int) -> None:
        """The chunk is out: the action task lets go of the row."""
        self.ledger.set_prefix(plan.row, prefix)
        self.ledger.release(plan.row, ACTION)
        self.budget.refill(steady)

    def admitted(self, plan: Admit, prefix: int, position_offset: int, took_ns: int) -> None:
        """The request's prefix and prompt are in its row."""
        request = plan.request
        self.budget.spend(self._admission(request), took_ns)
        if plan.prefill or plan.fork_from is not None:
            self.ledger.set_prefix(plan.row, prefix)
        if plan.fork_from is not None:
            self.ledger.release(plan.fork_from, request.id)
        request.source_row = None
        request.phase = Phase.DECODING
        request.position_offset = position_offset
        self._grow(request, prefix + len(request.prompt_tokens))

    def decoded(self, plan: Decode, took_ns: int) -> None:
        """Each request's last token is now in its row."""
        self.budget.spend(Work(DECODE, len(plan.requests)), took_ns)
        for request in plan.requests:
            self._grow(request, request.length + 1)

    def end(self, request: RequestState) -> None:
        """Forget a request, whatever it holds."""
        for row in request.rows:
            self.ledger.release(row, request.id)
        request.source_row = request.row = None
        request.phase = Phase.ENDED
        home = self.queue if request in self.queue else self.live
        home.remove(request)

    def check_integrity(self) -> None:
        """Recount the ledger between steps; raises AssertionError."""
        self.ledger.check_integrity({r.id: r.rows for r in self.live if r.rows})
        assert len(self.live) <= self.limits.max_rows, 'more live requests than rows'
        assert len(self.queue) <= self.limits.max_queue, 'queue beyond its limit'
        assert self.ledger.free_rows > 0, 'no row is left for the next frame'

    def _grow(self, request: RequestState, length: int) -> None:
        assert request.row is not None
        request.length = length
        self.ledger.grow(request.row, length)

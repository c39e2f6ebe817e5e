"""The engine: step() is schedule -> run -> commit, one unit of work at a time."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from oxygen_ros.engine.budget import Budget
from oxygen_ros.engine.execution import EAGER, Execution
from oxygen_ros.engine.fixed_runner import FixedRunner
from oxygen_ros.engine.kv_ledger import KVLedger
from oxygen_ros.engine.kv_pool import KVPool
from oxygen_ros.engine.kv_size import kv_size
from oxygen_ros.engine.request import MODES, FrameState, Limits, Mode, RequestState
from oxygen_ros.engine.runner import Runner
from oxygen_ros.engine.scheduler import Admit, Decode, Scheduler, Serve
from oxygen_ros.models.base import NoChunk, VLAModel
from oxygen_ros.models.guidance import Guide
from oxygen_ros.types import EngineStats, LanguageRequest, OxygenError, Reason

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FrameAnswer:
    """actions: float32 [H, A_padded], normalised; None with a problem instead.

    declined: the problem is the model's answer, not a failure.
    """

    frame: FrameState
    actions: np.ndarray | None
    began_ns: int
    ended_ns: int
    problem: str = ''
    declined: bool = False


@dataclass(frozen=True)
class Token:
    """One token of a request, the index-th; token None on an end without one.

    reason is set on the last.
    """

    state: RequestState
    index: int
    token: int | None
    began_ns: int
    ended_ns: int
    reason: Reason | None = None
    problem: str = ''


Output = FrameAnswer | Token


class Engine:
    """Frames and requests in, normalised actions and token ids out. One thread calls it.

    clock: nanoseconds that stamp outputs and judge deadlines (ROS time, bag time, ...).
    execution: how the model is run; raises what a capture raises.
    """

    def __init__(
        self,
        model: VLAModel,
        mode: str,
        budget: Budget,
        limits: Limits,
        denoise_steps: int,
        max_kv_bytes: int,
        clock: Callable[[], int],
        execution: Execution = EAGER,
    ) -> None:
        size = kv_size(model.spec, limits, model.dtype.itemsize)
        size.check(max_kv_bytes)
        self.model = model
        self.ledger = KVLedger(size.rows, size.capacity, size.slot_bytes)
        self.pool = KVPool(model.spec, size.rows, size.capacity, model.device, model.dtype)
        self.execution = execution
        execution.apply(model)
        runner = FixedRunner if execution.captured else Runner
        self.runner = runner(model, self.pool, denoise_steps)
        self.scheduler = Scheduler(_mode(mode), limits, budget, self.ledger)
        self._clock = clock
        self._outbox: list[Output] = []
        self._count: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._rows_max = 0
        self._step_ms: dict[str, float] = {}

    # -- in

    def observe(
        self,
        stamp_ns: int,
        inputs: Any,
        noise: torch.Tensor,
        anchor: Any = None,
        guide: Guide | None = None,
    ) -> int:
        """Offer a frame; returns its number. The newest waiting frame wins."""
        length = self.model.prefix_length(inputs)
        assert length <= self.model.spec.max_prefix, f'prefix of {length} tokens'
        frame = FrameState(self._count['frames'], stamp_ns, inputs, noise, anchor, guide)
        self._count['frames'] += 1
        replaced = self.scheduler.offer(frame, time.monotonic_ns())
        if replaced is not None:
            now = self._clock()
            problem = f'replaced by frame {frame.number} before its turn'
            self._outbox.append(FrameAnswer(replaced, None, now, now, problem))
        return frame.number

    def submit(
        self, request: LanguageRequest, prompt_tokens: list[int], problem: str = ''
    ) -> None:
        """Queue a request for the next frame; a refusal is the first output of step().

        problem: why its prompt cannot be used, known before it came here.
        """
        now = self._clock()
        deadline = now + request.deadline_ns if request.deadline_ns > 0 else None
        state = RequestState(request, prompt_tokens, self._count['requests'], deadline)
        self._count['requests'] += 1
        problem = problem or self.scheduler.refusal(state)
        if problem:
            self._note_end(Reason.REFUSED)
            self._outbox.append(Token(state, 0, None, now, now, Reason.REFUSED, problem))
        else:
            self.scheduler.submit(state)

    def cancel(self, request_id: str = '') -> int:
        """End one request, or all for '', at the next step boundary; returns how many."""
        return self.scheduler.cancel(request_id)

    def drop_frame(self) -> None:
        """Forget the waiting frame, if there is one."""
        self.scheduler.frame = None

    def put_back(self, outputs: list[Output]) -> None:
        """Return outputs that step() gave, to be given again first."""
        self._outbox[:0] = outputs

    def forget_statistics(self) -> None:
        """Count anew, from frame 0: after a warm-up, while nothing is pending."""
        self._count.clear()
        self._ended.clear()
        self._rows_max = self.runner.prefills = 0

    def grant(self) -> None:
        """Refill the budget because no frame did."""
        self.scheduler.budget.refill(time.monotonic_ns())

    # -- step

    @property
    def idle(self) -> bool:
        """Whether step() would do nothing."""
        return not self._outbox and not self.scheduler.has_work(self._clock(), time.monotonic_ns())

    def step(self) -> list[Output]:
        """Do one unit of work and return what it gave, ends and refusals first."""
        began = self._clock()
        outputs, self._outbox = self._outbox, []
        for state, reason in self.scheduler.due_to_end(began):
            outputs.append(self._end(state, reason, began))
        plan = self.scheduler.schedule(time.monotonic_ns())
        if isinstance(plan, Serve):
            outputs.append(self._serve(plan, began))
        elif isinstance(plan, Admit):
            outputs.append(self._admit(plan, began))
        elif isinstance(plan, Decode):
            outputs += self._decode(plan, began)
        return outputs

    def check_integrity(self) -> None:
        """Recount the books between steps; raises AssertionError."""
        self.scheduler.check_integrity()

    def _serve(self, plan: Serve, began: int) -> FrameAnswer:
        frame, problem, declined = plan.frame, '', False
        actions: np.ndarray | None = None
        started = time.monotonic_ns()
        try:
            actions = self.runner.serve(plan).numpy()
        except NoChunk as error:
            problem, declined = str(error), True
        except RuntimeError as error:  # out of memory, a kernel's refusal: this frame alone
            _log.exception('frame %d failed', frame.number)
            problem = f'failed: {error}'
        prefix = frame.prefilled.length if frame.prefilled is not None else 0
        if actions is not None and not np.isfinite(actions).all():
            problem, actions = 'actions are not finite', None
        if problem:
            self.pool.taint(plan.row, prefix)
        self.scheduler.served(plan, prefix, time.monotonic_ns())
        self._count['chunks'] += actions is not None
        self._time('frame', started)
        if self.scheduler.mode.share_prefill:
            frame.inputs = None  # the prefix is all that its requests need
            if frame.prefilled is not None:
                frame.prefilled.extras.clear()  # hidden states can be as large as the KV
            if not prefix:
                self._fail_requests(frame, began, problem)
        return FrameAnswer(frame, actions, began, self._clock(), problem, declined)

    def _fail_requests(self, frame: FrameState, now: int, problem: str) -> None:
        for state in [r for r in self.scheduler.live if r.frame is frame]:
            self._outbox.append(self._end(state, Reason.FAILED, now, problem))

    def _admit(self, plan: Admit, began: int) -> Token:
        state = plan.request
        started = time.monotonic_ns()
        try:
            result = self.runner.admit(plan)
        except RuntimeError as error:
            _log.exception('request %s failed', state.id)
            return self._end(state, Reason.FAILED, began, str(error))
        took_ns = time.monotonic_ns() - started
        self.scheduler.admitted(plan, result.prefix, result.position_offset, took_ns)
        self._time('admit', started)
        return self._token(state, result.token, began)

    def _decode(self, plan: Decode, began: int) -> list[Output]:
        started = time.monotonic_ns()
        try:
            tokens = self.runner.decode(plan)
        except RuntimeError as error:
            _log.exception('decode step of %d rows failed', len(plan.requests))
            return [self._end(r, Reason.FAILED, began, str(error)) for r in plan.requests]
        self.scheduler.decoded(plan, time.monotonic_ns() - started)
        self._count['decode_steps'] += 1
        self._rows_max = max(self._rows_max, len(plan.requests))
        self._time('decode', started)
        pairs = zip(plan.requests, tokens, strict=True)
        return [self._token(state, token, began) for state, token in pairs]

    # -- commit

    def _token(self, state: RequestState, token: int | None, began: int) -> Token:
        """Book a request's next token, and its end if it is the last."""
        if token is None:
            return self._end(state, Reason.FAILED, began, 'logits are not finite')
        if token in self.model.spec.eos_ids:
            return self._end(state, Reason.STOP, began)
        state.tokens.append(token)
        self._count['tokens'] += 1
        if len(state.tokens) == state.request.max_tokens:
            return self._end(state, Reason.LENGTH, began, token=token)
        return Token(state, len(state.tokens) - 1, token, began, self._clock())

    def _end(
        self,
        state: RequestState,
        reason: Reason,
        began: int,
        problem: str = '',
        token: int | None = None,
    ) -> Token:
        if reason is Reason.FAILED and state.row is not None:
            self.pool.taint(state.row, self.ledger[state.row].prefix)
        self.scheduler.end(state)
        self.runner.sampler.forget(state.id)
        self._note_end(reason)
        index = len(state.tokens) - (token is not None)
        return Token(state, index, token, began, self._clock(), reason, problem)

    def _note_end(self, reason: Reason) -> None:
        self._ended[reason.value] += 1

    def _time(self, phase: str, started: int) -> None:
        self._step_ms[phase] = (time.monotonic_ns() - started) / 1e6

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges."""
        scheduler, pool, count = self.scheduler, self.pool, self._count
        return EngineStats(
            frames=count['frames'],
            chunks=count['chunks'],
            requests=count['requests'],
            requests_done=self._ended[Reason.STOP.value] + self._ended[Reason.LENGTH.value],
            requests_ended=dict(self._ended),
            tokens=count['tokens'],
            prefills=self.runner.prefills,
            decode_steps=count['decode_steps'],
            forks=pool.forks,
            fork_bytes=pool.fork_bytes,
            kv_bytes_copied_between_frames=pool.bytes_between_frames,
            queued=len(scheduler.queue),
            rows_in_use=len(scheduler.live),
            rows_max=self._rows_max,
            rows_limit=scheduler.limits.max_rows,
            to_admit=len(scheduler.to_admit),
            kv_bytes_in_use=self.ledger.bytes_in_use,
            kv_bytes_limit=self.ledger.bytes_limit,
            budget_steps=scheduler.budget.left(),
            budget_used=scheduler.budget.used,
            step_ms=dict(self._step_ms),
        )


def _mode(name: str) -> Mode:
    if name not in MODES:
        raise OxygenError(f'mode is {name!r}: allowed are {", ".join(MODES)}')
    return MODES[name]

"""Random arrivals, ends, cancels, deadlines and failures: the books stay right throughout."""

import collections

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oxygen_ros.engine.budget import make_budget
from oxygen_ros.engine.kv_ledger import KVLedger
from oxygen_ros.engine.request import MODES, FrameState, Limits, Phase, RequestState
from oxygen_ros.engine.scheduler import Admit, Decode, Scheduler, Serve
from oxygen_ros.types import LanguageRequest

LIMITS = Limits(max_rows=3, max_queue=4, max_prompt_tokens=5, max_new_tokens=6)
BYTES_PER_TOKEN = 7
CAPACITY = 10 + 5 + 6


class Episode(RuleBasedStateMachine):
    """Drives the scheduler as the engine does, with outcomes drawn at random."""

    @initialize(
        mode=st.sampled_from(sorted(MODES)), budget=st.sampled_from(['0', '2', 'unlimited'])
    )
    def begin(self, mode, budget):
        self.ledger = KVLedger(LIMITS.max_rows + 1, CAPACITY, BYTES_PER_TOKEN)
        self.scheduler = Scheduler(MODES[mode], LIMITS, make_budget(budget), self.ledger)
        self.now = 0
        self.frames = 0
        self.accepted = collections.Counter()
        self.ended = collections.Counter()
        self.serial = 0
        self.prefixes = {}  # frame number -> tokens

    @rule(tokens=st.integers(1, 10))
    def frame(self, tokens):
        self.prefixes[self.frames] = tokens
        self.scheduler.offer(FrameState(self.frames, 0, None, None), self.now)
        self.frames += 1

    @rule(
        words=st.integers(0, 6),
        asked=st.integers(-1, 7),
        priority=st.integers(-1, 1),
        deadline=st.none() | st.integers(0, 20),
        again=st.booleans(),
    )
    def request(self, words, asked, priority, deadline, again):
        name = str(self.serial - again)
        self.serial += not again
        asked = LanguageRequest(name, max_tokens=asked, priority=priority)
        at = None if deadline is None else self.now + deadline
        state = RequestState(asked, [9] * words, self.serial, at)
        if not self.scheduler.refusal(state):
            self.scheduler.submit(state)
            self.accepted[name] += 1

    @rule(which=st.integers(-1, 30))
    def cancel(self, which):
        self.scheduler.cancel('' if which < 0 else str(which))

    @rule(ticks=st.integers(1, 10))
    def wait(self, ticks):
        self.now += ticks
        self.scheduler.budget.refill(self.now)

    @rule(ends=st.lists(st.sampled_from(['token', 'stop', 'failed']), min_size=3, max_size=3))
    def step(self, ends):
        work = self.scheduler.has_work(self.now, self.now)
        due = self.scheduler.due_to_end(self.now)
        for state, _ in due:
            self.end(state)
        waiting = self.scheduler.frame
        plan = self.scheduler.schedule(self.now)
        assert work == bool(due or plan), 'has_work() and schedule() disagree'
        if waiting is not None:
            assert isinstance(plan, Serve) and plan.frame is waiting, 'actions come first'
        if isinstance(plan, Serve):
            self.scheduler.served(plan, self.prefixes[plan.frame.number], self.now)
        elif isinstance(plan, Admit):
            self.admit(plan, ends[0])
        elif isinstance(plan, Decode):
            self.decode(plan, ends)

    def admit(self, plan, outcome):
        request = plan.request
        if plan.fork_from is not None:
            assert plan.source_frame == request.frame.number, 'a fork stays within its frame'
        if outcome == 'failed':
            self.end(request)
            return
        self.scheduler.admitted(plan, self.prefixes[request.frame.number], 0)
        self.token(request, outcome)

    def decode(self, plan, ends):
        if not self.scheduler.mode.batch:
            assert len(plan.requests) == 1
        rows = [request.row for request in plan.requests]
        assert len(set(rows)) == len(rows), 'two requests write to one row'
        self.scheduler.decoded(plan, 1)
        for request, outcome in zip(plan.requests, ends, strict=False):
            self.token(request, outcome)

    def token(self, request, outcome):
        if outcome == 'token':
            request.tokens.append(5)
        if outcome != 'token' or len(request.tokens) == request.request.max_tokens:
            self.end(request)

    def end(self, request):
        self.scheduler.end(request)
        assert request.phase is Phase.ENDED
        self.ended[request.id] += 1

    @invariant()
    def books_are_right(self):
        if not hasattr(self, 'scheduler'):
            return
        self.scheduler.check_integrity()
        decoding = [r for r in self.scheduler.live if r.phase is Phase.DECODING]
        shared = {r.source_row for r in self.scheduler.live if r.source_row is not None}
        expected = sum(r.length for r in decoding)
        expected += sum(
            self.prefixes[r.frame.number]
            for row in shared - {d.row for d in decoding}
            for r in [next(x for x in self.scheduler.live if x.source_row == row)]
        )
        assert self.ledger.bytes_in_use == expected * BYTES_PER_TOKEN

    def teardown(self):
        """Everything accepted ends exactly once, and then nothing is held."""
        if not hasattr(self, 'scheduler'):
            return
        self.scheduler.cancel('')
        for state, _ in self.scheduler.due_to_end(self.now):
            self.end(state)
        assert self.ended == self.accepted
        assert self.ledger.bytes_in_use == 0
        assert self.ledger.free_rows == LIMITS.max_rows + 1


Episode.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestEpisode = Episode.TestCase

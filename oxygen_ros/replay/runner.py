"""Feeds a bag's messages to the policy, as the node would, on the bag's own timeline.

Deterministic: one thread, record order, and a clock that only the bag moves. A frame is answered
when it is whole, then language runs until the frame's budget is used.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from oxygen_ros.policy import Policy, PolicyOutput
from oxygen_ros.replay.bag import Message
from oxygen_ros.replay.measured import Measured
from oxygen_ros.replay.outcome import OTHER_CLOCK_NS, Answer, Frame, Outcome
from oxygen_ros.replay.recorded import RecordedMotion, Said
from oxygen_ros.replay.sources import Source
from oxygen_ros.replay.stream import Stream
from oxygen_ros.replay.watch import Watch
from oxygen_ros.ros.contract import Contract
from oxygen_ros.ros.conversions import (
    ConversionError,
    compressed_to_rgb,
    image_to_rgb,
    instruction_text,
    joint_vector,
    request_from_msg,
    stamp_ns,
)
from oxygen_ros.ros.joints import JointMap
from oxygen_ros.ros.observation_buffer import ObservationBuffer
from oxygen_ros.types import ActionChunk, FrameDropped, OxygenError, Reason, TokenDelta

ENGINE_COUNTERS = (
    'prefills',
    'decode_steps',
    'rows_max',
    'forks',
    'kv_bytes_copied_between_frames',
    'truncated_instructions',
)


class BagClock:
    """The policy's clock: the record time of the message at hand, in ns; never goes back."""

    def __init__(self, start_ns: int) -> None:
        self.now_ns = start_ns

    def __call__(self) -> int:
        """Current time in ns."""
        return self.now_ns

    def advance(self, time_ns: int) -> None:
        """Move to a message's time."""
        self.now_ns = max(self.now_ns, time_ns)


class Runner:
    """One replay on the bag's timeline; outcome() is its result."""

    def __init__(
        self,
        policy: Policy,
        contract: Contract,
        sources: dict[str, Source],
        clock: BagClock,
        *,
        tasks: Iterable[str],
        instruction: str = '',
        idle_period_ns: int = 50_000_000,
        action_rate_hz: float = 70.0,
    ) -> None:
        self.policy = policy
        self.buffer = ObservationBuffer(contract)
        self.buffer.set_default_instruction(instruction)
        self.frames: list[Frame] = []
        self.answers: list[Answer] = []
        self.dropped: Counter[str] = Counter()
        self.warnings: list[str] = []
        self.measured = Measured()
        self._contract = contract
        self._action_units = JointMap(contract.actions.joints)
        self._stream = Stream(contract, action_rate_hz)
        self._motion = RecordedMotion(
            contract.actions.names, round(contract.timing.state_max_age_ms * 1e6)
        )
        self._said = Said(contract.actions.names)
        self._watch = Watch(sources, contract, clock.now_ns)
        self._sources = sources
        self._clock = clock
        self._tasks = tuple(tasks)
        self._idle_period_ns = idle_period_ns
        self._worked_ns = clock.now_ns
        self._began_ns = 0  # of the work at hand, on a steady clock
        self._warned: set[tuple[str, str]] = set()
        self._handlers: dict[str, Callable[[Source, Any], None]] = {
            'image': self._on_image,
            'compressed': self._on_image,
            'state': self._on_state,
            'instruction': self._on_instruction,
            'request': self._on_request,
            'cancel': self._on_cancel,
            'said_chunk': lambda source, msg: self._said.add_chunk(msg),
            'said_token': lambda source, msg: self._said.add_token(msg),
        }

    def feed(self, message: Message) -> None:
        """Take the next message; one that cannot be used is counted, warned of once, and left."""
        began_ns = time.perf_counter_ns()
        self._clock.advance(message.time_ns)
        self._grant_idle_time()
        self._began_ns = time.perf_counter_ns()
        source = self._sources[message.topic]
        header = getattr(message.value, 'header', None)
        self._watch.see(message.topic, stamp_ns(header) if header else 0, message.time_ns)
        try:
            if message.value is None:
                raise ConversionError('bad_message', message.problem)
            self._handlers[source.kind](source, message.value)
        except ConversionError as error:
            self._watch.unusable(message.topic)
            self._drop(error.reason, message.topic, str(error))
        self.measured.busy_s += (time.perf_counter_ns() - began_ns) / 1e9

    def finish(self) -> int:
        """Run the language that is left to its end; returns how many answers that ended."""
        ended_before = self._ended()
        self._began_ns = time.perf_counter_ns()
        for delta in self.policy.stream():
            self._take(delta)
        self.measured.busy_s += (time.perf_counter_ns() - self._began_ns) / 1e9
        self._stream.finish(self._motion.last_ns)
        return self._ended() - ended_before

    def outcome(self, problem: str = '') -> Outcome:
        """All results so far; problem: why there are no more."""
        stats, info = self.policy.stats, self.policy.info
        return Outcome(
            timeline='bag',
            model={k: v for k, v in asdict(info).items() if k != 'effective'},
            effective=info.effective,
            frames=self.frames,
            answers=self.answers,
            motion=self._motion,
            said=self._said,
            streamed=self._stream.steps,
            measured=self.measured,
            seams=self._stream.seams,
            chunk_gaps=self._stream.gaps,
            images={'used': self.buffer.used, 'waiting': self.buffer.held()},
            dropped=self.buffer.dropped + self.dropped,
            events=self.buffer.events,
            skipped=dict(stats.tasks_skipped),
            engine={name: getattr(stats, name) for name in ENGINE_COUNTERS},
            inputs=self._watch.rows(),
            warnings=[*self.warnings, *self._watch.notes()],
            problem=problem,
        )

    def _on_image(self, source: Source, msg: Any) -> None:
        rgb = compressed_to_rgb(msg) if source.kind == 'compressed' else image_to_rgb(msg)
        now_ns, jumps = self._clock.now_ns, self.buffer.events['time_jump']
        observation = self.buffer.add_image(source.slot, rgb, stamp_ns(msg.header), now_ns)
        if self.buffer.events['time_jump'] > jumps:
            self._stream.jump()
            self.policy.reset()
            self._work()
        if observation is None:
            return
        try:
            number = self.policy.observe(observation, overlap=self._stream.overlap(observation))
        except OxygenError as error:
            self._drop('frame_refused', source.slot, str(error))
            return
        cameras, stamp = tuple(observation.images), observation.stamp_ns
        self.frames.append(Frame(number, now_ns, stamp, cameras, self._motion.segment))
        self._work()

    def _on_state(self, source: Source, msg: Any) -> None:
        vector = joint_vector(msg, self._contract.state.names)
        self.buffer.add_joint_state(vector, stamp_ns(msg.header), self._clock.now_ns)
        self._motion.add(msg, self._clock.now_ns)

    def _on_instruction(self, source: Source, msg: Any) -> None:
        self.buffer.set_instruction(instruction_text(msg))

    def _on_request(self, source: Source, msg: Any) -> None:
        request = request_from_msg(msg)
        answer = Answer(request.request_id, request.task, request.prompt, self._clock.now_ns)
        self.answers.append(answer)
        if request.task in self._tasks:
            self.policy.submit(request)
            self._work()
            return
        answer.reason = Reason.REFUSED
        answer.detail = (
            f'task {request.task} has no topic: ask for one of {", ".join(self._tasks)} '
            'or add it to language_tasks'
        )

    def _on_cancel(self, source: Source, msg: Any) -> None:
        self.policy.cancel(msg.data)
        self._work()

    def _work(self) -> None:
        """Step until the policy waits: the frame first, then words within the budget."""
        while not self.policy.idle:
            for output in self.policy.step():
                self._take(output)
        self._worked_ns = self._clock.now_ns

    def _grant_idle_time(self) -> None:
        """Where the bag pauses, give pending words what the node's timer would give them."""
        target_ns = self._clock.now_ns
        while self._worked_ns + self._idle_period_ns <= target_ns:
            self._clock.now_ns = self._worked_ns + self._idle_period_ns
            self._began_ns = time.perf_counter_ns()
            self.policy.grant()
            if self.policy.idle:
                self._worked_ns = target_ns
            else:
                self._work()
        self._clock.now_ns = target_ns

    def _take(self, output: PolicyOutput) -> None:
        if isinstance(output, ActionChunk):
            self._take_chunk(self._action_units.chunk_to_robot(output))
        elif isinstance(output, FrameDropped):
            self._drop('frame_failed', 'a frame', output.problem)
        else:
            self._take_token(output)

    def _take_chunk(self, chunk: ActionChunk) -> None:
        frame = self.frames[-1]
        assert frame.frame == chunk.frame, 'a frame is answered before the next'
        took_ns = time.perf_counter_ns() - self._began_ns
        waited_ns = frame.time_ns - frame.stamp_ns
        self.measured.frame_ms.append(took_ns / 1e6)
        if abs(waited_ns) < OTHER_CLOCK_NS:
            self.measured.latency_ms.append((waited_ns + took_ns) / 1e6)
        reason, problem = self._stream.problem(chunk)
        if reason:
            self._drop(reason, 'action chunks', f'frame {chunk.frame} is refused: {problem}')
            return
        frame.chunk = chunk
        # as if it had been there at once: the speed of this machine must not show
        self._stream.offer(chunk, frame.segment, frame.stamp_ns)

    def _take_token(self, output: TokenDelta) -> None:
        answer = self._answer_of(output)
        if output.frame >= 0:
            answer.frame, answer.stamp_ns = output.frame, output.stamp_ns
        if output.reason in (Reason.FAILED, Reason.REFUSED):
            answer.detail = output.text
        else:
            answer.text += output.text
        if output.token_id >= 0:
            self._take_word(answer, output.token_id)
        answer.reason = output.reason

    def _take_word(self, answer: Answer, token: int) -> None:
        answer.tokens.append(token)
        self.measured.tokens += 1
        if answer.first_ns is None:
            now_ns = answer.first_ns = self._clock.now_ns
            took_ns = time.perf_counter_ns() - self._began_ns
            self.measured.first_token_ms.append((now_ns - answer.time_ns + took_ns) / 1e6)

    def _answer_of(self, delta: TokenDelta) -> Answer:
        """The answer a delta belongs to; an id in use twice was refused the second time.

        What a task asks by itself comes to light with its first delta.
        """
        open_ = [a for a in self.answers if a.request_id == delta.request_id and a.reason is None]
        if open_:
            return open_[-1 if delta.reason is Reason.REFUSED else 0]
        rule = self.policy.tasks.rules.get(delta.task)
        assert rule, f'a token for {delta.request_id}, which is not waiting for one'
        times = [f.time_ns for f in self.frames if f.frame == delta.frame]
        time_ns = times[0] if times else self._clock.now_ns
        self.answers.append(Answer(delta.request_id, delta.task, rule.prompt, time_ns))
        return self.answers[-1]

    def _ended(self) -> int:
        return sum(answer.reason is not None for answer in self.answers)

    def _drop(self, reason: str, topic: str, text: str) -> None:
        self.dropped[reason] += 1
        if (reason, topic) not in self._warned:
            self._warned.add((reason, topic))
            self.warnings.append(f'{topic}: {text}')

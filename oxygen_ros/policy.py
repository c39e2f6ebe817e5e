"""The one surface that ROS, replay and benchmarks call: Observation in, chunks and words out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oxygen_ros.checkpoint import inspect_checkpoint
from oxygen_ros.devices import find_device
from oxygen_ros.engine.budget import make_budget
from oxygen_ros.engine.engine import Engine, FrameAnswer, Output, Token
from oxygen_ros.engine.execution import NAMES, Execution, choose, compilations, start
from oxygen_ros.engine.request import Limits
from oxygen_ros.models.base import VLAModel
from oxygen_ros.models.guidance import Guide, overlap_mask
from oxygen_ros.models.registry import describe, load
from oxygen_ros.preflight import check_checkpoint
from oxygen_ros.processing.tokenizer import Detokenizer
from oxygen_ros.tasks import TaskRule, TaskSchedule
from oxygen_ros.types import (
    ActionChunk,
    EngineStats,
    Finding,
    FrameDropped,
    LanguageRequest,
    Observation,
    Overlap,
    OxygenError,
    PolicyInfo,
    Reason,
    TokenDelta,
)

PolicyOutput = ActionChunk | FrameDropped | TokenDelta
DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16}
_NO_FRAME = -1


@dataclass(frozen=True)
class PolicyOptions:
    """How a checkpoint is run; the defaults are the node's defaults.

    mode: 'isolated', 'shared_kv' or 'continuous'.
    budget: decode steps per frame as a number, 'auto', or 'unlimited'.
    max_rows: language rows decoded together. max_queue: requests that may wait for a frame.
    denoise_steps: Euler steps of the action expert, 0 for as many as the model's makers take.
    robot_tag: which robot's statistics to use, '' where the checkpoint has those of only one.
    max_prompt_tokens, max_new_tokens: longest request. max_kv_mb: KV pool, refused if it is more.
    execution: 'eager' is the reference; 'fused' has fewer kernels, 'compiled' compiles them,
    'graphs' captures fused ones in fixed shapes, 'compiled_graphs' compiled ones; 'auto' is
    'graphs' on a GPU and 'fused' elsewhere.
    cpu_threads: of torch, for the whole process; 0 leaves torch's own choice.
    tasks: language tasks with a prompt of their own, or that ask by themselves.
    """

    mode: str = 'continuous'
    budget: int | str = 5
    device: str = 'cpu'
    dtype: str = 'float32'
    execution: str = 'auto'
    denoise_steps: int = 0
    robot_tag: str = ''
    seed: int = 0
    max_rows: int = 8
    max_queue: int = 32
    max_prompt_tokens: int = 64
    max_new_tokens: int = 256
    max_kv_mb: int = 4096
    cpu_threads: int = 0
    tasks: tuple[TaskRule, ...] = ()

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value < least:
                raise OxygenError(f'{name} is {value}: must be at least {least}')
        for name, allowed in (('dtype', tuple(DTYPES)), ('execution', NAMES)):
            if getattr(self, name) not in allowed:
                raise OxygenError(
                    f'{name} is {getattr(self, name)!r}: allowed are {", ".join(allowed)}'
                )

    @property
    def limits(self) -> Limits:
        """What the engine allocates by."""
        return Limits(self.max_rows, self.max_queue, self.max_prompt_tokens, self.max_new_tokens)


_LEAST = {
    'denoise_steps': 0,
    'max_rows': 1,
    'max_queue': 1,
    'max_prompt_tokens': 0,
    'max_new_tokens': 1,
    'max_kv_mb': 1,
    'cpu_threads': 0,
}


@dataclass(frozen=True)
class PreparedFrame:
    """A frame as the network takes it; made by Policy.prepare(). inputs: of the family."""

    observation: Observation
    inputs: Any


class Policy:
    """A loaded checkpoint that answers frames. One thread calls it; another may prepare()."""

    def __init__(
        self,
        path: str | Path,
        options: PolicyOptions,
        clock: Callable[[], int],
        progress: Callable[[float], None] | None = None,
    ) -> None:
        checkpoint = inspect_checkpoint(path, options.robot_tag)
        self.options = options
        if options.cpu_threads:
            torch.set_num_threads(options.cpu_threads)
        family = load(checkpoint, find_device(options.device), DTYPES[options.dtype], progress)
        self._processor = family.processor
        self._clock = clock
        effective = {f.name: str(getattr(options, f.name)) for f in dataclasses.fields(options)}
        self._denoise_steps = options.denoise_steps or family.denoise_steps
        real = {
            'denoise_steps': str(self._denoise_steps),
            'device': str(family.model.device),
            'dtype': str(family.model.dtype).removeprefix('torch.'),
            'cpu_threads': str(torch.get_num_threads()),
        }
        self.info = dataclasses.replace(
            describe(checkpoint), effective={**effective, **real, **family.notes}
        )
        self.tasks = TaskSchedule(options.tasks)
        self._words: dict[str, Detokenizer] = {}
        self._truncated = 0
        self._make_ready(family.model)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        options: PolicyOptions | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        progress: Callable[[float], None] | None = None,
        **overrides: Any,
    ) -> Policy:
        """Load a checkpoint folder and warm it up. Overrides are fields of PolicyOptions.

        clock: nanoseconds that stamp outputs and judge deadlines. progress: called with the
        fraction of the weights that is read. Raises OxygenError.
        """
        return cls(path, _options(options, overrides), clock, progress)

    @staticmethod
    def inspect(path: str | Path, robot_tag: str = '') -> PolicyInfo:
        """Read a checkpoint's description without its weights. Raises OxygenError."""
        return describe(inspect_checkpoint(path, robot_tag))

    @staticmethod
    def preflight(
        path: str | Path, options: PolicyOptions
    ) -> tuple[PolicyInfo | None, list[Finding]]:
        """What fits and what does not, of a checkpoint run like this, without its weights.

        The description is None if a misfit hides it.
        """
        dtype, limit = DTYPES[options.dtype], options.max_kv_mb * 2**20
        return check_checkpoint(
            path, options.limits, options.device, dtype, limit, options.robot_tag
        )

    # -- in

    def act(
        self,
        observation: Observation,
        noise: np.ndarray | None = None,
        requests: Iterable[LanguageRequest] = (),
    ) -> ActionChunk:
        """Answer one frame now. Words that are due meanwhile wait in step() and stream().

        noise: float32 [H, A_padded], drawn from (seed, stamp_ns) when not given.
        Raises OxygenError when the frame cannot be answered.
        """
        for request in requests:
            self.submit(request)
        number = self.observe(observation, noise)
        kept: list[Output] = []
        while True:
            for output in self.engine.step():
                if not isinstance(output, FrameAnswer) or output.frame.number != number:
                    kept.append(output)
                elif output.actions is None:
                    self.engine.put_back(kept)
                    raise OxygenError(f'frame {number} has no actions: {output.problem}')
                else:
                    self.engine.put_back(kept)
                    return self._chunk(output, output.actions)

    def prepare(self, observation: Observation) -> PreparedFrame:
        """Do what observe() does first, without a frame being queued. Raises OxygenError.

        Changes nothing, so it may run beside everything else: what words and frames share, the
        tokenizer, is set up by the warm-up and only read afterwards.
        """
        return PreparedFrame(observation, self._processor.frame(observation))

    def observe(
        self,
        frame: Observation | PreparedFrame,
        noise: np.ndarray | None = None,
        overlap: Overlap | None = None,
    ) -> int:
        """Queue a frame for step(); returns its number. Raises OxygenError if it cannot be used.

        A frame that waits already is replaced: the newest wins, the other is reported by step().
        overlap: continue the running chunk (real-time chunking).
        """
        if overlap is not None and self.info.no_overlap:
            raise OxygenError(self.info.no_overlap)
        prepared = frame if isinstance(frame, PreparedFrame) else self.prepare(frame)
        observation, inputs = prepared.observation, prepared.inputs
        self._truncated += inputs.truncated
        for request in self.tasks.due(observation.stamp_ns):
            self._submit(request)
        return self.engine.observe(
            observation.stamp_ns,
            inputs,
            self._noise(observation.stamp_ns, noise),
            observation.state,
            None if overlap is None else self._guide(overlap, observation.state),
        )

    def submit(self, request: LanguageRequest) -> None:
        """Queue a request for the next frame; a refusal comes as a TokenDelta from step()."""
        self._submit(request, self.tasks.problem(request))

    def _submit(self, request: LanguageRequest, problem: str = '') -> None:
        tokens: list[int] = []
        try:
            tokens = self._processor.prompt_tokens(self.tasks.complete(request))
        except OxygenError as error:  # words the model has no token for
            problem = problem or f'prompt cannot be read: {error}'
        self.engine.submit(request, tokens, problem)

    def cancel(self, request_id: str = '') -> int:
        """End a request, or all for ''; returns how many. Their last deltas come from step()."""
        return self.engine.cancel(request_id)

    def set_budget(self, budget: int | str) -> None:
        """Another number of decode steps per frame from now on. Raises OxygenError."""
        made = make_budget(budget)
        if made.name == self.engine.scheduler.budget.name:
            return
        self.engine.scheduler.budget = made
        self.options = dataclasses.replace(self.options, budget=budget)
        effective = {**self.info.effective, 'budget': str(budget)}
        self.info = dataclasses.replace(self.info, effective=effective)

    def grant(self) -> None:
        """Refill the decode budget as a frame would: called by a timer when no frame arrives."""
        self.engine.grant()

    def reset(self) -> None:
        """New episode: cancel all language and forget the waiting frame."""
        self.engine.cancel()
        self.engine.drop_frame()

    def start_over(self) -> None:
        """As if just loaded: all language ends unheard, counters and frames begin at 0."""
        self.reset()
        while not self.engine.idle:
            self.step()
        self._truncated = 0
        self.tasks = TaskSchedule(self.options.tasks)
        self.engine.forget_statistics()

    # -- out

    def step(self) -> list[PolicyOutput]:
        """Do the next unit of work: a frame, a request's first token, or a decode step.

        Actions always come before words. Returns at once with [] when nothing is due.
        """
        return [self._output(output) for output in self.engine.step()]

    @property
    def idle(self) -> bool:
        """True when step() would do nothing until a frame, a request or grant() comes."""
        return self.engine.idle

    def stream(self) -> Iterator[TokenDelta]:
        """Decode, whatever the budget, until no request that has a frame is left."""
        while self.engine.scheduler.live or not self.engine.idle:
            if self.engine.idle:
                self.engine.grant()
            yield from (output for output in self.step() if isinstance(output, TokenDelta))

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges."""
        return dataclasses.replace(
            self.engine.stats,
            truncated_instructions=self._truncated,
            tasks_skipped=dict(self.tasks.skipped),
            execution=self.engine.execution.name,
            fallback=self._fallback,
            captures_after_ready=compilations() - self._compilations,
        )

    # -- between the engine's numbers and the caller's

    def _output(self, output: Output) -> PolicyOutput:
        if isinstance(output, Token):
            return self._delta(output)
        if output.actions is None:
            return FrameDropped(output.frame.number, output.frame.stamp_ns, output.problem)
        return self._chunk(output, output.actions)

    def _chunk(self, answer: FrameAnswer, actions: np.ndarray) -> ActionChunk:
        return ActionChunk(
            self._processor.robot_actions(actions, answer.frame.anchor),
            answer.frame.number,
            answer.frame.stamp_ns,
            answer.began_ns,
            answer.ended_ns,
        )

    def _delta(self, output: Token) -> TokenDelta:
        state = output.state
        final = output.reason is not None
        text = output.problem
        if final:
            self.tasks.ended(state.request)
        if output.reason is not Reason.REFUSED:  # the id may be another request's
            words = self._words.setdefault(state.id, self._processor.detokenizer())
            if output.token is not None:
                text = words.push(output.token)
            if final:
                text += '' if output.problem else words.flush()
                del self._words[state.id]
        return TokenDelta(
            request_id=state.id,
            task=state.request.task,
            frame=_NO_FRAME if state.frame is None else state.frame.number,
            stamp_ns=0 if state.frame is None else state.frame.stamp_ns,
            index=output.index,
            token_id=-1 if output.token is None else output.token,
            text=text,
            final=final,
            reason=output.reason,
            began_ns=output.began_ns,
            ended_ns=output.ended_ns,
        )

    def _guide(self, overlap: Overlap, state: np.ndarray) -> Guide:
        """Target and mask [H, A_padded]; rows and joints that nothing is known of are free."""
        spec, rows = self.engine.model.spec, len(overlap.actions)
        width = self.info.action_dim
        if overlap.actions.shape != (rows, width) or not 0 < rows <= spec.horizon:
            raise OxygenError(
                f'overlap has shape {list(overlap.actions.shape)}: must be '
                f'[1 to {spec.horizon}, {width}]'
            )
        if not 0 <= overlap.delay <= rows:
            raise OxygenError(f'overlap delay is {overlap.delay}: must be 0 to {rows}')
        target = torch.zeros(spec.horizon, spec.action_dim)
        known = self._processor.network_actions(overlap.actions, state)
        target[:rows, :width] = torch.from_numpy(known)
        mask = torch.zeros_like(target)
        mask[:, :width] = overlap_mask(spec.horizon, rows, overlap.delay)[:, None]
        return Guide(target, mask)

    def _noise(self, stamp_ns: int, noise: np.ndarray | None) -> torch.Tensor:
        """Float32 [H, A_padded]; one stamp and seed give one noise, live and in replay."""
        spec = self.engine.model.spec
        shape = (spec.horizon, spec.action_dim)
        if noise is None:
            key = [self.options.seed % 2**64, stamp_ns % 2**64]
            generator = np.random.Generator(np.random.Philox(key=key))
            noise = generator.standard_normal(shape, dtype=np.float32)
        if noise.shape != shape or noise.dtype != np.float32:
            raise OxygenError(
                f'noise is {noise.dtype} {list(noise.shape)}: must be float32 {list(shape)}'
            )
        return torch.from_numpy(noise)

    def _make_ready(self, model: VLAModel) -> None:
        """Engine and warm-up in the way that was asked for, or plainly if that fails."""
        asked = choose(self.options.execution, model.device)
        _, way, self._fallback = start(partial(self._start, model), asked)
        execution = f'{way.name}, because {self._fallback}' if self._fallback else way.name
        effective = {**self.info.effective, 'execution': execution}
        self.info = dataclasses.replace(self.info, effective=effective)
        self._compilations = compilations()

    def _start(self, model: VLAModel, way: Execution) -> None:
        options = self.options
        self.engine = Engine(
            model,
            options.mode,
            make_budget(options.budget),
            options.limits,
            self._denoise_steps,
            options.max_kv_mb * 2**20,
            self._clock,
            way,
        )
        try:
            self._warm_up()
        except Exception:
            del self.engine  # its KV pool must be gone when the next one's is made
            raise

    def _warm_up(self) -> None:
        """Run a frame and an answer, so that the first real ones are not slower.

        Compiled layers know one camera and several apart, so they see both.
        """
        state = np.zeros(self.info.state_dim, np.float32)
        tokens = min(3, self.options.max_new_tokens)
        requests = [LanguageRequest('warm-up', max_tokens=tokens)]
        every = len(self.info.cameras)
        compiled = 'compiled' in self.engine.execution.layers
        for count in sorted({1, every} if compiled else {every}):
            images = {name: np.zeros((8, 8, 3), np.uint8) for name in self.info.cameras[:count]}
            for request in requests:
                self.submit(request)
            self.observe(Observation(images, state, 'warm up'))
            (answer,) = self.engine.step()
            assert isinstance(answer, FrameAnswer), 'a frame comes first'
            if answer.problem and not answer.declined:
                raise RuntimeError(f'frame {answer.frame.number} has no actions: {answer.problem}')
            requests = []
        for _ in self.stream():
            pass
        self.start_over()


def _options(options: PolicyOptions | None, overrides: dict[str, Any]) -> PolicyOptions:
    known = {field.name for field in dataclasses.fields(PolicyOptions)}
    if unknown := sorted(set(overrides) - known):
        raise OxygenError(
            f'unknown options {", ".join(unknown)}: allowed are {", ".join(sorted(known))}'
        )
    return dataclasses.replace(options or PolicyOptions(), **overrides)

"""One bag, one report: what the command, the summary of many bags and Ray jobs have in common."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from oxygen_ros.bench.timeline import Timeline
from oxygen_ros.policy import Policy
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.made_by import checkpoint_digests, versions
from oxygen_ros.replay.measured import Work
from oxygen_ros.replay.outcome import Outcome
from oxygen_ros.replay.report import build_report, duration_s
from oxygen_ros.replay.runner import BagClock, Runner
from oxygen_ros.replay.sources import Sources, check_joints, find_sources
from oxygen_ros.ros import parameters
from oxygen_ros.ros.contract import Contract, load_contract
from oxygen_ros.ros.preflight import notes_of, preflight, refuse_misfits
from oxygen_ros.types import OxygenError

# What 'auto' becomes: measured step times would make two runs differ.
AUTO_BUDGET = '5'


@dataclass(frozen=True)
class Evaluation:
    """A bag's report, and what pages show beside it. measured: as in reports, if asked for."""

    path: Path
    report: dict[str, Any]
    measured: dict[str, Any]
    outcome: Outcome
    contract: Contract
    sources: Sources


class Evaluator:
    """Replays bags with one checkpoint and one setting; the weights are loaded once.

    timeline: 'bag' or 'live'. quiet: no progress bars. Raises OxygenError where the setting
    itself cannot be used.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        notes: Sequence[str] = (),
        *,
        namespace: str = '',
        timeline: str = 'bag',
        quiet: bool = False,
    ) -> None:
        self.values = dict(values)
        self.contract = load_contract(values['robot'])
        self._given_notes = tuple(notes)
        self._notes = list(notes)
        self._namespace = namespace
        self._timeline = timeline
        self._hidden = True if quiet else None  # None: no bar where stderr is no terminal
        if timeline == 'bag' and self.values['budget'] == 'auto':
            self.values['budget'] = AUTO_BUDGET
            self._notes.append(
                f"budget 'auto' depends on measured time: replay uses {AUTO_BUDGET} steps per "
                'frame'
            )
        self._clock = BagClock(0)
        self._policy: Policy | None = None
        self._checked = False
        self.made_by: dict[str, Any] = {}  # filled by check()
        self.interrupted = False  # the last report ends where the user stopped it

    def setting(self) -> dict[str, Any]:
        """Arguments that make another one like this, in another process."""
        checkpoint = str(Path(self.values['checkpoint']).expanduser().resolve())
        values = {**self.values, 'checkpoint': checkpoint, 'robot': self.contract.path}
        return {'values': values, 'notes': self._given_notes, 'namespace': self._namespace}

    def __call__(self, path: str | Path) -> Evaluation:
        """Replay a bag. Raises OxygenError if nothing of it can be used."""
        with Bag(path) as bag:
            instruction = self.values['default_instruction']
            sources = find_sources(
                bag, self.contract, instruction=instruction, namespace=self._namespace
            )
            check_joints(bag, self.contract, sources)
            self.check()
            began = time.monotonic()
            outcome = (
                self._live(bag, sources) if self._timeline == 'live' else self._run(bag, sources)
            )
            outcome.measured.wall_s = outcome.measured.wall_s or time.monotonic() - began
            notes = [*self._notes, *sources.notes, *_note_order(bag, sources, outcome)]
            outcome.problem = outcome.problem or bag.problem
            report = {
                **build_report(bag, self.contract, sources, self.values, outcome, notes),
                'made_by': self.made_by,
            }
            measured = outcome.measured.report(duration_s(bag))
        return Evaluation(bag.path, report, measured, outcome, self.contract, sources)

    def check(self) -> None:
        """Checkpoint, contract and memory, and who makes the report; once. Raises OxygenError."""
        if not self._checked:
            findings = preflight(self.values, self.contract)
            refuse_misfits(findings)
            self._notes += notes_of(findings)
            digests = checkpoint_digests(
                str(self.values['checkpoint']), str(self.values['robot_tag']), self._hidden
            )
            self.made_by = {**versions(), **digests}
            self._checked = True

    def _live(self, bag: Bag, sources: Sources) -> Outcome:
        try:
            from oxygen_ros.replay.live import replay_live
        except ImportError as error:
            raise OxygenError(
                f'--timeline live needs ROS 2, which is not installed: {error}'
            ) from error
        return replay_live(bag, sources, self.contract, self.values, self._hidden)

    def _run(self, bag: Bag, sources: Sources) -> Outcome:
        policy = self._loaded(bag.start_ns)
        runner = Runner(
            policy,
            self.contract,
            sources.by_topic,
            self._clock,
            tasks=self.values['language_tasks'],
            instruction=self.values['default_instruction'],
            idle_period_ns=round(self.values['idle_step_period_ms'] * 1e6),
            action_rate_hz=self.values['action_rate_hz'],
        )
        with Timeline(policy.engine) as timeline:
            problem = self._work(bag, sources, runner)
        outcome = runner.outcome(problem)
        outcome.measured.work = [
            Work(span.phase, span.began_ns, span.ended_ns, span.rows) for span in timeline.spans
        ]
        return outcome

    def _work(self, bag: Bag, sources: Sources, runner: Runner) -> str:
        """Feed the bag; why it could not be used to its end, or ''."""
        problem = ''
        try:
            self._feed(bag, sources, runner)
        except OxygenError as error:  # of a bag that is damaged further on
            if not runner.frames:
                raise
            problem = str(error)
        except KeyboardInterrupt:
            if not runner.frames:
                raise
            self.interrupted = True
            return f'interrupted {(self._clock.now_ns - bag.start_ns) / 1e9:.2f} s into the bag'
        self._end(runner)
        return problem

    def _feed(self, bag: Bag, sources: Sources, runner: Runner) -> None:
        total = sum(topic.messages for topic in bag.topics if topic.name in sources.by_topic)
        with tqdm(
            total=total, unit='msg', desc=bag.name, leave=False, disable=self._hidden
        ) as bar:
            for message in bag.messages(sources.by_topic):
                runner.feed(message)
                bar.update()

    def _end(self, runner: Runner) -> None:
        ended = runner.finish()
        if ended:
            runner.warnings.append(
                f'{ended} language requests outlived the bag and were run to their end'
            )

    def _loaded(self, start_ns: int) -> Policy:
        """The policy as if just loaded, its clock at the begin of a bag."""
        self._clock.now_ns = start_ns
        if self._policy is not None:
            self._policy.start_over()
            return self._policy
        options = parameters.policy_options(self.values)
        form = 'loading {percentage:3.0f}%|{bar}|'
        with tqdm(total=1.0, bar_format=form, leave=False, disable=self._hidden) as bar:
            self._policy = Policy.from_checkpoint(
                self.values['checkpoint'],
                clock=self._clock,
                progress=lambda fraction: bar.update(fraction - bar.n),
                **options,
            )
        return self._policy


def _note_order(bag: Bag, sources: Sources, outcome: Outcome) -> list[str]:
    """Count in the inputs how often record times go back; a sentence on each such topic."""
    steps = bag.steps_back()
    for row in outcome.inputs:
        row['record_went_back'] = steps[row['topic']].times if row['topic'] in steps else 0
    return [
        f'{topic}: record times go back {step.times} times, by up to {step.most_ns / 1e9:.2f} s: '
        'messages are taken in the order of their record times, so what was recorded before and '
        'after such a step is mixed. Cut the recording there'
        for topic, step in sorted(steps.items())
        if topic in sources.by_topic
    ]

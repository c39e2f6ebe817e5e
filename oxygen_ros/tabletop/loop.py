"""The closed loop without ROS: the world, the policy, and between them the node's own mover.

Time is simulated. A frame is taken every FRAME_TICKS; its chunk reaches the mover some
ticks later, as through a node that takes that long; the arm moves meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from oxygen_ros.policy import Policy
from oxygen_ros.ros.contract import load_contract
from oxygen_ros.ros.motion.mover import Mover
from oxygen_ros.tabletop import ROBOT, language
from oxygen_ros.tabletop.episode import FRAME_TICKS, LIMIT_S, Referee, Run, Spoken, episode_scene
from oxygen_ros.tabletop.render import CAMERAS, observations
from oxygen_ros.tabletop.tasks import Task
from oxygen_ros.tabletop.world import TICK_S, Scenes
from oxygen_ros.types import LanguageRequest, TokenDelta

TICK_NS = round(TICK_S * 1e9)
LAG_TICKS = 5  # 71 ms from camera to chunk
ASK_EVERY = 5  # frames between two questions
EPISODE_NS = 1_000_000_000_000  # between two episodes' first stamps


def run_episode(
    policy: Policy,
    seed: int,
    number: int,
    cameras: Sequence[str] = CAMERAS,
    ask: bool = True,
    lag: int = LAG_TICKS,
) -> Run:
    """One episode from its first frame to its goal or the time limit. lag: of chunks, in ticks."""
    scenes, task, rng = episode_scene(seed, number)
    run = Run(task)
    referee = Referee(run)
    mover = Mover(load_contract(ROBOT).actions, TICK_S)
    asker = Asker(policy, rng, f'{number}')
    start_ns = (1 + number) * EPISODE_NS
    due = {}
    for tick in range(round(LIMIT_S / TICK_S)):
        now_ns = start_ns + tick * TICK_NS
        if tick % FRAME_TICKS == 0:
            if ask and tick % (FRAME_TICKS * ASK_EVERY) == 0:
                run.spoken.append(asker.ask(scenes, task))
            (seen,) = observations(scenes, [task.text], tuple(cameras), now_ns)
            due[tick + lag] = policy.act(seen)
            asker.listen()
        if tick in due:
            mover.offer(due.pop(tick), now_ns)
            run.seams.append(tick)
        step = mover.tick(now_ns, now_ns)
        command = scenes.joints[0] if step is None else step.values
        run.commands.append(np.asarray(command, float))
        scenes.step(run.commands[-1][None])
        if referee.reached(scenes, tick):
            break
    asker.finish()
    return run


class Asker:
    """Questions to a policy and the answers that come back while frames go on."""

    def __init__(self, policy: Policy, rng: np.random.Generator, name: str) -> None:
        self._policy, self._rng, self._name = policy, rng, name
        self._open: dict[str, Spoken] = {}
        self._asked = 0

    def ask(self, scenes: Scenes, task: Task, kind: str | None = None) -> Spoken:
        """Ask about the scene of the next frame."""
        kind = kind or str(self._rng.choice(list(language.QUESTIONS)))
        (known,) = language.facts(scenes, [task])
        spoken = Spoken(language.ask(self._rng, known, kind), known)
        key = f'{self._name}.{self._asked}'
        self._asked += 1
        self._open[key] = spoken
        self._policy.submit(LanguageRequest(key, prompt=spoken.question.prompt, max_tokens=48))
        return spoken

    def listen(self) -> None:
        """Decode as much as the frame's budget allows."""
        while not self._policy.idle:
            self._take(o for o in self._policy.step() if isinstance(o, TokenDelta))

    def finish(self) -> None:
        """Hear every answer to its end."""
        self._take(self._policy.stream())

    def _take(self, deltas: Iterable[TokenDelta]) -> None:
        for delta in deltas:
            self._open[delta.request_id].answer += delta.text
            if delta.final:
                del self._open[delta.request_id]

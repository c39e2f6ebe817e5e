"""python -m oxygen_ros.tabletop.evaluate: the small model in the closed loop, scored.

Episodes have layouts and instructions that training has not seen. Through the policy alone, in
the three modes, with the same noise; with --node also through the real node, in real time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from oxygen_ros.policy import Policy
from oxygen_ros.tabletop import SHIPPED, language
from oxygen_ros.tabletop.episode import Spoken
from oxygen_ros.tabletop.loop import LAG_TICKS, Asker, run_episode
from oxygen_ros.tabletop.render import CAMERAS, observations
from oxygen_ros.tabletop.samples import examples
from oxygen_ros.tabletop.scores import by_kind, score, share
from oxygen_ros.tabletop.tasks import KINDS, UNSEEN
from oxygen_ros.tabletop.world import TICK_S
from oxygen_ros.types import OxygenError

MODES = ('isolated', 'shared_kv', 'continuous')
SCENES = 200


def evaluate(
    checkpoint: Path, episodes: int, seed: int, modes: Sequence[str], cameras: Sequence[str]
) -> dict[str, Any]:
    """Scores through the policy alone. Raises OxygenError if the checkpoint cannot be used."""
    by_mode = {}
    for mode in modes:
        policy = Policy.from_checkpoint(checkpoint, mode=mode, cpu_threads=1)
        numbers = tqdm(range(episodes), desc=mode)
        by_mode[mode] = score([run_episode(policy, seed, n, cameras) for n in numbers])
    spoken = held_out_answers(policy, seed, min(SCENES, 2 * episodes))
    digests = {scored['actions_sha256'] for scored in by_mode.values()}
    return {
        'checkpoint': str(checkpoint),
        'episodes': episodes,
        'seed': seed,
        'cameras': list(cameras),
        'lag_ms': round(LAG_TICKS * TICK_S * 1e3, 1),
        'modes': by_mode,
        'actions_equal': len(digests) == 1 if len(by_mode) > 1 else None,
        'language': share(s.right for s in spoken),
        'language_by_kind': by_kind((s.question.kind, s.right) for s in spoken),
        'language_asked': len(spoken),
    }


def held_out_answers(policy: Policy, seed: int, scenes: int) -> list[Spoken]:
    """One question of every kind about each of some unseen scenes, in any state of a task."""
    rng = np.random.default_rng([seed, 8])
    made = examples(rng, scenes, UNSEEN)
    asker = Asker(policy, rng, 'scene')
    spoken = []
    for row, task in enumerate(tqdm(made.tasks, desc='language')):
        scene = made.scenes.take([row])
        spoken += [asker.ask(scene, task, kind) for kind in language.QUESTIONS]
        (seen,) = observations(scene, [task.text], stamp_ns=row)
        policy.act(seen)
        asker.finish()
    return spoken


def _say(scores: dict[str, Any]) -> None:
    for name, scored in (*scores['modes'].items(), ('node', scores.get('node'))):
        if scored:
            kinds = ', '.join(
                f'{kind} {scored["by_kind"][kind]["right"]:.0%}'
                for kind in KINDS
                if kind in scored['by_kind']
            )
            print(f'{name:<11} success {scored["success"]:.1%} ({kinds})')
    if scores['actions_equal'] is not None:
        print(f'actions bit-equal in all modes: {scores["actions_equal"]}')
    print(f'language on unseen scenes: {scores["language"]:.1%}')


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog='oxygen_ros.tabletop.evaluate', description=__doc__)
    parser.add_argument('--checkpoint', type=Path, default=SHIPPED)
    parser.add_argument('--episodes', type=int, default=200)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', type=Path, help='where the scores go')
    parser.add_argument('--modes', nargs='+', choices=MODES, default=list(MODES))
    parser.add_argument('--without', nargs='*', choices=CAMERAS, default=[], help='no such camera')
    parser.add_argument('--node', action='store_true', help='also through the real node')
    given = parser.parse_args(argv)
    if given.episodes < 1:
        parser.error(f'--episodes is {given.episodes}: must be at least 1')
    cameras = [camera for camera in CAMERAS if camera not in given.without]
    try:
        scores = evaluate(given.checkpoint, given.episodes, given.seed, given.modes, cameras)
        if given.node:
            from oxygen_ros.tabletop.live import evaluate_node  # needs ROS

            scores['node'] = evaluate_node(given.checkpoint, given.episodes, given.seed)
    except OxygenError as error:
        print(f'evaluate: {error}', file=sys.stderr)
        return 1
    _say(scores)
    if given.json:
        given.json.write_text(json.dumps(scores, indent=1) + '\n', encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())

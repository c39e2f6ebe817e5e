"""python -m oxygen_ros.tabletop.evaluate: the small model in the closed loop, scored.

Episodes have layouts and instructions that training has not seen. Through the policy alone, in
the three modes, with the same noise; with --node also through the real node, in real time.

Exit code 0; 1 where it went wrong on the way, 130 when it was interrupted: the scores until then
are written, with complete: false; 2, with one line on stderr, when something given cannot be used.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from oxygen_ros.policy import Policy
from oxygen_ros.replay.files import check_writable, write_text
from oxygen_ros.tabletop import SHIPPED, language
from oxygen_ros.tabletop.episode import NEAR_LINE, Spoken
from oxygen_ros.tabletop.loop import LAG_TICKS, Asker, run_episode
from oxygen_ros.tabletop.render import CAMERAS, observations
from oxygen_ros.tabletop.samples import examples
from oxygen_ros.tabletop.scores import by_kind, score, share
from oxygen_ros.tabletop.tasks import KINDS, UNSEEN
from oxygen_ros.tabletop.world import TICK_S
from oxygen_ros.types import OxygenError

MODES = ('isolated', 'shared_kv', 'continuous')
NODE_MODES = ('continuous',)  # where none is given: a run through the node takes its time
# Of the mode that did worst.
NODE_KEYS = ('mode', 'cameras', 'episodes', 'success', 'success_near', 'language', 'language_best')
SCENES = 200


@dataclass(frozen=True)
class Setting:
    """What to evaluate, and how. lag: ticks from a frame to its chunk, without the node.

    node_modes: of the runs through the node, none for no such run.
    """

    checkpoint: Path = SHIPPED
    episodes: int = 200
    seed: int = 1
    modes: tuple[str, ...] = MODES
    cameras: tuple[str, ...] = CAMERAS
    node_modes: tuple[str, ...] = ()
    lag: int = LAG_TICKS


def evaluate(setting: Setting, scores: dict[str, Any]) -> None:
    """Fill in the scores, one part after the other; what fails leaves those before it.

    Raises OxygenError if the checkpoint cannot be used or the node fails.
    """
    scores |= {
        'checkpoint': str(setting.checkpoint),
        'episodes': setting.episodes,
        'seed': setting.seed,
        'cameras': list(setting.cameras),
        'lag_ms': round(setting.lag * TICK_S * 1e3, 1),
        'near_line_mm': NEAR_LINE * 1e3,
        'modes': {},
    }
    for mode in setting.modes:
        policy = Policy.from_checkpoint(setting.checkpoint, mode=mode, cpu_threads=1)
        scores['modes'][mode] = {}
        _run_episodes(policy, setting, mode, scores['modes'][mode])
    digests = {scored['actions_sha256'] for scored in scores['modes'].values()}
    scores['actions_equal'] = len(digests) == 1 if len(setting.modes) > 1 else None
    _answer(policy, setting, scores)
    if setting.node_modes:
        from oxygen_ros.tabletop.live import evaluate_node  # needs ROS

        scores['node'] = {'modes': {}}
        for mode in setting.node_modes:
            into: dict[str, Any] = {}
            scores['node']['modes'][mode] = into
            given = (setting.checkpoint, setting.episodes, setting.seed)
            evaluate_node(*given, mode, setting.cameras, into)
        worst = min(scores['node']['modes'].values(), key=lambda scored: scored['success'])
        scores['node'] |= {key: worst[key] for key in NODE_KEYS}


def _run_episodes(policy: Policy, setting: Setting, mode: str, into: dict[str, Any]) -> None:
    runs = []
    try:
        for number in tqdm(range(setting.episodes), desc=mode):
            runs.append(
                run_episode(policy, setting.seed, number, setting.cameras, lag=setting.lag)
            )
    finally:
        if runs:
            into.update(score(runs))


def _answer(policy: Policy, setting: Setting, scores: dict[str, Any]) -> None:
    spoken = held_out_answers(policy, setting.seed, min(SCENES, 2 * setting.episodes))
    scores |= {
        'language': share(s.right for s in spoken),
        'language_best': share(s.best for s in spoken),
        'language_by_kind': by_kind((s.question.kind, s.right) for s in spoken),
        'language_by_kind_best': by_kind((s.question.kind, s.best) for s in spoken),
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


def table(scores: dict[str, Any]) -> str:
    """Success and words, by strict rules and by those with a margin."""
    near = f'{scores["near_line_mm"]:g} mm early'
    lines = [f'{"":<17} {"success":>8}  {near:>11}   by kind']
    runs = scores['modes'] | {
        f'node, {mode}': scored for mode, scored in scores.get('node', {}).get('modes', {}).items()
    }
    for name, scored in runs.items():
        if scored:
            kinds = (
                f'{kind} {scored["by_kind"][kind]["right"]:.1%} of {scored["by_kind"][kind]["of"]}'
                for kind in KINDS
                if kind in scored['by_kind']
            )
            lines.append(
                f'{name:<17} {scored["success"]:>8.1%}  {scored["success_near"]:>11.1%}   '
                f'{", ".join(kinds)}'
            )
    if scores.get('actions_equal') is not None:
        lines.append(f'actions bit-equal in all modes: {scores["actions_equal"]}')
    if 'language' in scores:
        lines.append(
            f'language on unseen scenes: {scores["language_best"]:.1%} the best answer, '
            f'{scores["language"]:.1%} right within the margins'
        )
    if not scores['complete']:
        lines.append(f'INCOMPLETE: {scores["problem"]}')
    return '\n'.join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate from the command line; returns the exit code."""
    given = _parser().parse_args(argv)
    scores: dict[str, Any] = {'complete': False, 'problem': '', 'modes': {}}
    code = 1
    try:
        if given.json:
            check_writable(given.json)
        _evaluate_or_keep(_setting(given), scores)
    except OxygenError as error:
        print(f'evaluate: {error}', file=sys.stderr)
        code = 1 if any(scores['modes'].values()) else 2
    except KeyboardInterrupt:
        print('evaluate: interrupted', file=sys.stderr)
        code = 130
    else:
        code = 0
    finally:  # an error that nobody foresaw must not cost the scores either
        written = not any(scores['modes'].values()) or _give(scores, given.json)
    return code if written else 1


def _give(scores: dict[str, Any], path: Path | None) -> bool:
    """Print the scores and write them; False if they cannot be written."""
    print(table(scores))
    try:
        if path is not None:
            write_text(json.dumps(scores, indent=1) + '\n', path, '--json')
    except OxygenError as error:
        print(f'evaluate: {error}', file=sys.stderr)
        return False
    return True


def _evaluate_or_keep(setting: Setting, scores: dict[str, Any]) -> None:
    """Scores say whether they are all, and if not why."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        evaluate(setting, scores)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        scores['problem'] = 'interrupted' if interrupted else str(error) or type(error).__name__
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    scores['complete'] = True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='oxygen_ros.tabletop.evaluate', description=__doc__)
    parser.add_argument('--checkpoint', type=Path, default=SHIPPED)
    parser.add_argument('--episodes', type=int, default=200)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', type=Path, help='where the scores go')
    parser.add_argument(
        '--modes', nargs='+', choices=MODES,
        help=f'default all; through the node {", ".join(NODE_MODES)}',
    )  # fmt: skip
    parser.add_argument('--without', nargs='*', choices=CAMERAS, default=[], help='no such camera')
    parser.add_argument('--node', action='store_true', help='also through the real node')
    parser.add_argument(
        '--lag-ms', type=float, default=LAG_TICKS * TICK_S * 1e3,
        help='from a frame to its chunk through the policy alone, default %(default).0f',
    )  # fmt: skip
    return parser


def _setting(given: argparse.Namespace) -> Setting:
    if given.episodes < 1:
        raise OxygenError(f'--episodes is {given.episodes}: must be at least 1')
    if given.seed < 0:
        raise OxygenError(f'--seed is {given.seed}: must be 0 or more')
    if not 0.0 <= given.lag_ms <= 500.0:
        raise OxygenError(f'--lag-ms is {given.lag_ms:g}: must be from 0 to 500')
    cameras = tuple(camera for camera in CAMERAS if camera not in given.without)
    if not cameras:
        raise OxygenError(
            f'--without names all cameras ({", ".join(CAMERAS)}): at least one must be left'
        )
    modes = tuple(dict.fromkeys(given.modes or ()))
    return Setting(
        given.checkpoint,
        given.episodes,
        given.seed,
        modes or MODES,
        cameras,
        (modes or NODE_MODES) if given.node else (),
        round(given.lag_ms / 1e3 / TICK_S),
    )


if __name__ == '__main__':
    sys.exit(main())

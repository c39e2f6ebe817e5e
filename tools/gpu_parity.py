"""Engine parity on a device: golden actions and words in every mode and way to run a model.

Then bfloat16 at real head sizes (gpu_heads.py). No ROS, no pytest.

    python tools/gpu_parity.py --device cuda --json parity.json

Exit code 1 if anything differs by more than it may.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import gpu_heads  # noqa: E402
from apart import apart  # noqa: E402

from oxygen_ros.engine.execution import EXECUTIONS  # noqa: E402
from oxygen_ros.engine.request import MODES  # noqa: E402
from oxygen_ros.policy import Policy  # noqa: E402
from oxygen_ros.types import LanguageRequest, Observation  # noqa: E402

CASE = ROOT / 'test' / 'golden' / 'pi05_lerobot'
SLOTS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
Frame = tuple[Observation, np.ndarray, np.ndarray]  # noise [H, 32], robot actions [H, A]
TOLERANCE = 1e-4  # float32 on a GPU sums in another order than the maker's CPU


def main() -> int:
    """Check everything, each way in a process of its own, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--json', metavar='FILE')
    parser.add_argument('--seconds', type=float, default=600.0, help='for all of it')
    parser.add_argument('--ways', nargs='+', choices=list(EXECUTIONS), default=list(EXECUTIONS))
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # or a part would silently be eager
    torch.set_num_threads(1)  # of this process, which is forked
    found: dict[str, Any] = {'device': given.device}
    wrong = []
    end_s = time.monotonic() + given.seconds
    for name, result, held in check(given.device, given.ways, end_s):
        print(f'{name}: {"ok" if held else "FAILED"} {result}', flush=True)
        found[name] = result
        wrong += [] if held else [name]
        if given.json:
            Path(given.json).write_text(json.dumps(found, indent=2) + '\n', encoding='utf-8')
    print('parity: ' + (f'FAILED for {", ".join(wrong)}' if wrong else 'ok'))
    return 1 if wrong else 0


def good(found: dict[str, Any]) -> bool:
    """Whether one way holds on the golden observations."""
    if not ran_as_asked(found):
        return False
    flags = ('modes_bit_equal', 'words_equal_to_cpu', 'words_equal_alone')
    held = all(found[flag] for flag in flags) and found['captures_after_ready'] == 0
    return held and found['golden_actions_max_abs'] <= TOLERANCE


def ran_as_asked(found: dict[str, Any]) -> bool:
    """Whether one way ran; what is compiled may fall back where no compiler is, and says so."""
    return 'error' not in found and (
        found['ran_as'] == found['asked'] or 'compiled' in found['asked']
    )


def check(
    device: str, ways: Sequence[str], end_s: float
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Name, what was found and whether it holds, until a time on the monotonic clock.

    Per way on the four golden observations, then at real head sizes.
    """
    frames = observations()
    wanted = apart(partial(reference, frames), _share(end_s))
    for way in ways:
        found = apart(partial(check_way, device, way, frames, wanted), _share(end_s))
        yield way, found, good(found)
    values = gpu_heads.weights()
    exact = apart(partial(gpu_heads.reference, device, values), _share(end_s))
    if 'error' in exact:
        yield 'heads_reference', exact, False
        return
    eager = apart(partial(gpu_heads.check_way, device, 'eager', values, exact), _share(end_s))
    yield 'heads_eager', eager, ran_as_asked(eager) and gpu_heads.good(eager, eager)
    for way in [way for way in ways if way != 'eager']:
        found = apart(partial(gpu_heads.check_way, device, way, values, exact), _share(end_s))
        yield f'heads_{way}', found, ran_as_asked(found) and gpu_heads.good(found, eager)


def _share(end_s: float) -> float:
    """Seconds for the next one: one that hangs leaves time for others."""
    return max(end_s - time.monotonic(), 0.0) / 2


def reference(frames: list[Frame]) -> list[list[int]]:
    """Words that the CPU gives, eagerly."""
    return words(load('cpu', 'continuous', 'eager'), frames)


def check_way(
    device: str, way: str, frames: list[Frame], wanted_words: list[list[int]]
) -> dict[str, Any]:
    """One way in all modes."""
    policies = {mode: load(device, mode, way) for mode in MODES}
    worst, equal = 0.0, True
    for seen, noise, wanted in frames:
        chunks = {mode: p.act(seen, noise).actions for mode, p in policies.items()}
        worst = max(worst, float(np.abs(chunks['continuous'] - wanted).max()))
        equal &= all(np.array_equal(chunks['continuous'], chunk) for chunk in chunks.values())
    together = words(policies['continuous'], frames)
    stats = policies['continuous'].stats
    return {
        'asked': way,
        'ran_as': stats.execution,
        'fallback': stats.fallback,
        'golden_actions_max_abs': worst,
        'modes_bit_equal': bool(equal),
        'words_equal_to_cpu': together == wanted_words,
        'words_equal_alone': together == words(policies['isolated'], frames),
        'captures_after_ready': stats.captures_after_ready,
    }


def load(device: str, mode: str, way: str) -> Policy:
    """The golden checkpoint in float32."""
    return Policy.from_checkpoint(
        CASE / 'checkpoint', device=device, mode=mode, budget=2, execution=way
    )


def observations() -> list[Frame]:
    """Observation, noise [H, 32] and expected robot actions [H, A] of each golden case."""
    about = json.loads((CASE / 'case.json').read_text())['observations']
    inputs, expected = (
        load_file(CASE / 'inputs.safetensors'),
        load_file(CASE / 'expected.safetensors'),
    )
    found = []
    for letter, facts in about.items():
        names = [name for name in SLOTS if f'{letter}.image.{name}' in inputs]
        images = {name: inputs[f'{letter}.image.{name}'] for name in names}
        seen = Observation(images, inputs[f'{letter}.state'], facts['task'])
        robot = expected[f'{letter}.actions_robot'][0]
        found.append((seen, inputs[f'{letter}.noise'][0], robot))
    return found


def words(policy: Policy, frames: list[Frame]) -> list[list[int]]:
    """Greedy tokens of staggered requests, one per frame, decoded across frames."""
    tokens: dict[str, list[int]] = {}
    outputs = []
    for number, (seen, noise, _) in enumerate(frames):
        policy.act(
            seen, noise, [LanguageRequest(str(number), prompt='go ' * number, max_tokens=15)]
        )
        while not policy.idle:
            outputs += policy.step()
    for delta in [*outputs, *policy.stream()]:
        if getattr(delta, 'token_id', -1) >= 0:
            tokens.setdefault(delta.request_id, []).append(delta.token_id)
    return [tokens[str(number)] for number in range(len(frames))]


if __name__ == '__main__':
    sys.exit(main())

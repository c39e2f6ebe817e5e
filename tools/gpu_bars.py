"""What a frame and a decode step took on a GPU, beside what they should take.

python tools/gpu_bars.py OUT/paper.json
"""

import json
import sys
from pathlib import Path

# chip -> the most ms of a frame without language (3 views) and of a decode step of 8 rows
BARS = {'H200': (25.0, 5.0)}
REALISED = 0.95  # of the ideal speed-up
SPEED_UP = 3.7


def main() -> int:
    """Print a line per bar; a missed one is told, and is no failure of the check."""
    found = json.loads(Path(sys.argv[1]).read_text(encoding='utf-8'))
    times, chip = found['phases_ms'], found['setting']['chip']
    print(f'execution: {found["setting"]["execution_used"]} {found["fallback"]}'.rstrip())
    frame_bar, step_bar = next((bars for name, bars in BARS.items() if name in chip), (0.0, 0.0))
    frame, step = times['prefill'] + times['act'], times.get('decode_8')
    if frame_bar:
        print(f'frame without language: {frame:.1f} ms, {_judge(frame <= frame_bar, frame_bar)}')
    if frame_bar and step is not None:
        print(f'decode step of 8 rows: {step:.2f} ms, {_judge(step <= step_bar, step_bar)}')
    speedup, realised = found['speedup'], found['realised_over_ideal']
    print(f'speed-up: {speedup:.2f}, {_judge(speedup >= SPEED_UP, SPEED_UP)}')
    print(f'realised of the ideal: {realised:.3f}, {_judge(realised >= REALISED, REALISED)}')
    return 0


def _judge(held: bool, bar: float) -> str:
    return f'bar {bar:g}: {"held" if held else "MISSED"}'


if __name__ == '__main__':
    sys.exit(main())

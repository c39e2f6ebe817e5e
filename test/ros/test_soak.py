"""The soak test in short: the long form is tools/soak.py without arguments."""

import json
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).resolve().parents[2] / 'tools' / 'soak.py'


def test_every_message_is_accounted_for_and_nothing_grows(tmp_path):
    out = tmp_path / 'out.json'
    command = [sys.executable, str(SOAK), '--frames', '150', '--requests', '30', '--seed', '7']
    done = subprocess.run(
        [*command, '--json', str(out)], capture_output=True, text=True, timeout=240, check=False
    )
    assert out.exists(), done.stderr
    report = json.loads(out.read_text())
    assert report['faults'] == [], done.stdout
    assert done.returncode == 0
    # It has worn the node: each kind of mischief was there, and the node went on answering.
    assert min(report['mischief'].get(kind, 0) for kind in ('bad images', 'cancels')) > 0
    assert int(report['node']['images used']) > 300
    assert sum(report['ended'].values()) == 30

"""The README's Python runs as printed, on a checkpoint written as the README says."""

import re
from pathlib import Path

import numpy as np

from oxygen_ros.checkpoint.random_pi05 import main as write_checkpoint

README = Path(__file__).parents[2] / 'README.md'


def test_readme_python(tmp_path, monkeypatch, capsys):
    text = README.read_text(encoding='utf-8')
    (command,) = re.findall(r'`python -m oxygen_ros\.checkpoint\.random_pi05 (.*?)`', text)
    monkeypatch.chdir(tmp_path)
    write_checkpoint(command.split())
    (code,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
    names = {'image': np.full((48, 64, 3), 90, np.uint8), 'state': np.zeros(8, np.float32)}
    exec(compile(code, str(README), 'exec'), names)
    chunk, policy = names['chunk'], names['policy']
    printed = capsys.readouterr().out
    assert f'{chunk.actions.shape}\n' in printed
    assert np.isfinite(chunk.actions).all() and chunk.actions.shape == (10, 7)
    assert policy.stats.requests_done == 1
    assert len(printed.split('(10, 7)\n')[1]) > 0, 'words were streamed'

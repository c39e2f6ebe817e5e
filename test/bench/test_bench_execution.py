"""The benchmark says how the model was run, and measures on where the way asked for fails."""

import json
from types import SimpleNamespace

import torch

from oxygen_ros.bench.__main__ import main
from oxygen_ros.bench.measure import Phases
from oxygen_ros.engine import captures

TINY = ['--preset', 'tiny', '--execution', 'graphs', '--rounds', '1', '--frames', '1']


def test_a_way_that_fails_is_measured_eagerly_and_named(monkeypatch, tmp_path, capsys):
    def no_capture(function, inputs):
        raise RuntimeError('no capture today')

    monkeypatch.setattr(captures, 'recorder', lambda device: no_capture)
    out = tmp_path / 'result.json'
    assert main([*TINY, '--json', str(out)]) == 0
    found = json.loads(out.read_text())
    assert found['setting']['execution'] == 'graphs'
    assert found['setting']['execution_used'] == 'eager'
    assert found['fallback'] == 'graphs failed: RuntimeError: no capture today'
    assert (
        'execution that ran: eager because graphs failed: RuntimeError: no capture today\n'
        in capsys.readouterr().out
    )
    assert found['modes']['continuous']['frame_ms'] > 0


def test_a_time_ends_when_its_own_device_is_done(monkeypatch):
    waited_for = []
    monkeypatch.setattr(torch.cuda, 'synchronize', waited_for.append)
    for device in map(torch.device, ('cuda:1', 'cpu')):
        phases = object.__new__(Phases)
        phases.times, phases._model = {}, SimpleNamespace(device=device)
        phases._timed('phase', lambda: None)
        assert len(phases.times['phase']) == 1
    assert waited_for == [torch.device('cuda:1')]

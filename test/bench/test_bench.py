"""The benchmark runs whole on a tiny model, and its numbers hang together."""

import gc
import json
import subprocess
import sys
import weakref

import pytest
import torch

from oxygen_ros.bench.__main__ import main
from oxygen_ros.bench.arrivals import request_times
from oxygen_ros.bench.families import FAMILIES
from oxygen_ros.bench.measure import Session
from oxygen_ros.bench.plan import read_plan
from oxygen_ros.bench.roofline import CHIPS, roofline_ms
from oxygen_ros.bench.run import record
from oxygen_ros.bench.setting import Setting, build_model
from oxygen_ros.bench.sweep import Grid
from oxygen_ros.checkpoint import Pi05Arch
from oxygen_ros.checkpoint.random_pi05 import SIZES
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.kv_size import kv_size

TINY = ['--size', 'tiny', '--dtype', 'float32', '--prompt-tokens', '30']


@pytest.fixture(scope='module')
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp('bench') / 'new' / 'result.json'
    short = ['--rounds', '1', '--frames', '7', '--seconds', '1', '--tokens', '10']
    command = [sys.executable, '-m', 'oxygen_ros.bench', '--preset', 'arrivals', *TINY, *short]
    ran = subprocess.run([*command, '--json', str(out)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(out.read_text()), ran.stdout


def test_every_mode_delivers_the_same_work(result):
    found, _ = result
    assert set(found['modes']) == {'isolated', 'shared_kv', 'continuous'}
    for mode, numbers in found['modes'].items():
        assert numbers['tokens_per_frame'] == pytest.approx(10), mode
        assert numbers['actions_per_s'] == pytest.approx(10 * numbers['frames_per_s'])
    assert found['kv_bytes_copied'] == 0


def test_the_speed_up_follows_from_the_numbers_beside_it(result):
    found, printed = result
    modes, times = found['modes'], found['phases_ms']
    speedup = modes['isolated']['frame_ms'] / modes['continuous']['frame_ms']
    assert found['speedup'] == pytest.approx(speedup)
    alone = 2 * times['prefill'] + times['act'] + 10 * times['decode_1']
    together = times['prefill'] + times['act'] + 5 * times['decode_2']
    assert found['ideal'] == pytest.approx(alone / together)
    assert found['realised_over_ideal'] == pytest.approx(found['speedup'] / found['ideal'])
    assert found['captures_after_ready'] == 0
    rates = found['decode_tok_per_s']
    assert rates['2'] == pytest.approx(2e3 / times['decode_2'])
    assert f'speed-up {found["speedup"]:.2f}' in printed
    assert 'setting: family pi05, size tiny' in printed
    assert 'execution that ran: fused' in printed and found['setting']['execution_used'] == 'fused'
    assert 'of 7\n' in printed, 'how many samples a p99 is of'


def test_aims_are_in_the_json_as_printed(result):
    found, printed = result
    aims = {aim['name']: aim for aim in found['bars']}
    assert aims['speed-up']['value'] == found['speedup'] and aims['speed-up']['at_least'] == 2.2
    assert aims['realised over ideal']['held'] == (found['realised_over_ideal'] >= 0.95)
    assert aims['KV bytes copied between frames'] == {
        'name': 'KV bytes copied between frames', 'value': 0, 'at_most': 0, 'held': True,
    }  # fmt: skip
    assert aims['captures after ready']['held']
    ratio = found['arrivals']['camera_to_chunk_p99_ratio']
    assert aims['camera to chunk p99, with language over without']['held'] == (ratio <= 1.2)
    for name in aims:
        assert f'{name}: ' in printed


def test_growth_times_every_case(capsys, tmp_path):
    out = tmp_path / 'growth.json'
    more = ['--json', str(out), '--plots', str(tmp_path), '--tokens', '3']
    assert main(['--preset', 'growth', *TINY, '--rounds', '1', *more]) == 0
    assert (tmp_path / 'growth.png').stat().st_size > 10_000
    cases = {case.pop('case'): case for case in json.loads(out.read_text())['growth']}
    assert {'cameras 1', 'cameras 3', 'horizon 50', 'denoise_steps 20'} <= set(cases)
    for times in cases.values():
        assert set(times) == {'prefill', 'act', 'decode_1', 'decode_2', 'decode_4', 'decode_8'}
        assert min(times.values()) > 0
    assert 'prompt_tokens 200' in capsys.readouterr().out


def test_growth_leaves_a_horizon_alone_that_a_family_has_fixed(tmp_path):
    out = tmp_path / 'growth.json'
    own = ['--preset', 'growth', '--family', 'xiaomi_robotics_0', *TINY, '--rounds', '1']
    assert main([*own, '--json', str(out)]) == 0
    names = {case['case'].split()[0] for case in json.loads(out.read_text())['growth']}
    assert names == {'cameras', 'prompt_tokens', 'denoise_steps'}


def test_every_pattern_of_arrivals_is_answered(result):
    patterns = result[0]['arrivals']['patterns']
    assert set(patterns) == {'none', 'uniform', 'poisson', 'bursty', 'mixed'}
    assert patterns['none']['tok_per_s'] == 0
    for name, numbers in patterns.items():
        assert numbers['frames'] == 7 >= numbers['camera_to_chunk_ms_n'] > 0, name
        assert numbers['refused'] == 0, name
        assert name == 'none' or numbers['tok_per_s'] > 0, name


def test_request_times_keep_their_rate():
    for pattern in ('uniform', 'poisson', 'bursty', 'mixed'):
        times = request_times(pattern, rate=4.0, seconds=100.0, seed=1)
        assert len(times) == 400 and times == sorted(times)
        assert times[-1] == pytest.approx(100, rel=0.15)
    bursts = request_times('bursty', 4.0, 10.0, 1)
    assert bursts[:4] == [0.0] * 4 and bursts[4] == 1.0


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        (['--modes', 'fast'], 'unknown modes fast, allowed: isolated, shared_kv, continuous'),
        (['--device', 'cuda:99'], "device 'cuda:99' is not there"),
        (['--device', 'meta'], "device 'meta' cannot run a model here: use cpu or cuda"),
        (['--json', '/proc/nowhere/x.json'], 'cannot be written'),
        (['--json', '/tmp'], '/tmp is a folder: name a file in it'),
        (['--trace', '/tmp'], '/tmp is a folder: name a file in it'),
        (['--plots', '/proc/nowhere'], 'cannot be written'),
        (['--preset', 'huge'], "invalid choice: 'huge'"),
        (['--size', 'huge'], "invalid choice: 'huge'"),
        *(
            ([f'--{name}', value], 'not allowed, but a whole number from 1')
            for name in ('rounds', 'frames', 'tokens', 'cameras', 'horizon', 'prompt-tokens',
                         'denoise-steps')
            for value in ('0', '-3', 'two')
        ),
        *(
            ([f'--{name}', value], 'not allowed, but a number above 0')
            for name in ('frame-hz', 'request-hz', 'seconds')
            for value in ('0', '-1', 'nan', 'inf')
        ),
        (['--budget', '-1'], "but a whole number from 0, 'auto' or 'unlimited'"),
        (['--budget', 'much'], "but a whole number from 0, 'auto' or 'unlimited'"),
        (['--budget', '0'], 'no words would be delivered'),
        (['--tokens', '5,10'], '--tokens has 2 values'),
        (['--preset', 'sweep', '--budget', 'auto'], "--budget is 'auto': in preset sweep"),
        (['--preset', 'arrivals', '--seconds', '0.1'], 'less than one frame'),
        (['--family', 'starvla', '--prompt-tokens', '6'], 'this family needs at least 7'),
        (['--family', 'xiaomi_robotics_0', '--prompt-tokens', '6'], 'needs at least 7'),
    ],
)  # fmt: skip
def test_wrong_input_is_one_clear_line_before_the_run(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr('oxygen_ros.bench.__main__.run_modes', None)
    try:
        code = main([*TINY, '--rounds', '1', '--frames', '1', *arguments])
    except SystemExit as refused:  # by argparse
        code = refused.code
    assert code == 2 and said in capsys.readouterr().err


def test_pictures_without_matplotlib_are_refused_before_the_run_and_a_trace_is_not(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    short = [*TINY, '--rounds', '1', '--frames', '1', '--tokens', '4', '--budget', '2']
    assert main([*short, '--plots', str(tmp_path), '--json', str(tmp_path / 'a.json')]) == 2
    said = capsys.readouterr()
    assert 'pictures need matplotlib' in said.err and 'setting:' not in said.out
    files = ['--trace', str(tmp_path / 'trace.json'), '--json', str(tmp_path / 'b.json')]
    assert main([*short, *files, '--modes', 'continuous']) == 0
    events = json.loads((tmp_path / 'trace.json').read_text())['traceEvents']
    assert {event['name'] for event in events} >= {'prefill', 'act', 'admit', 'decode'}
    assert list(json.loads((tmp_path / 'b.json').read_text())['modes']) == ['continuous']


@pytest.mark.parametrize('error', [RuntimeError('out of memory'), KeyboardInterrupt()])
def test_what_was_measured_before_an_error_is_kept(error, tmp_path, monkeypatch, capsys):
    run, runs = Session.run, []

    def fails(self, frames, into):
        runs.append(frames)
        if runs.count(3) == 3:  # of the third round; a warm-up has other numbers
            raise error
        run(self, frames, into)

    monkeypatch.setattr(Session, 'run', fails)
    out = tmp_path / 'a.json'
    short = ['--tokens', '4', '--rounds', '4', '--frames', '3', '--modes', 'continuous']
    with pytest.raises(type(error)):
        main([*TINY, *short, '--json', str(out)])
    found = json.loads(out.read_text())
    assert found['stopped'].startswith(type(error).__name__)
    assert found['modes']['continuous']['camera_to_chunk_ms']['n'] == 6, 'two rounds of three'
    assert 'what was measured until then is kept' in capsys.readouterr().err


def test_the_result_is_written_before_anything_is_drawn(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError('no picture')

    monkeypatch.setattr('oxygen_ros.bench.__main__.record', fails)
    files = ['--json', str(tmp_path / 'a.json'), '--trace', str(tmp_path / 'trace.json')]
    with pytest.raises(RuntimeError, match='no picture'):
        main([*TINY, '--tokens', '2', '--budget', '2', '--rounds', '1', '--frames', '1', *files])
    assert json.loads((tmp_path / 'a.json').read_text())['speedup'] > 0


def test_no_speed_up_of_work_that_is_not_equal(tmp_path, monkeypatch, capsys):
    run = Session.run

    def loses_words(self, frames, into):
        run(self, frames, into)
        into.tokens -= self._mode == 'continuous'

    monkeypatch.setattr(Session, 'run', loses_words)
    out = tmp_path / 'a.json'
    short = ['--tokens', '4', '--rounds', '1', '--frames', '1', '--budget', '2']
    assert main([*TINY, *short, '--json', str(out)]) == 0
    found = json.loads(out.read_text())
    assert 'speedup' not in found and 'speed-up' not in {bar['name'] for bar in found['bars']}
    said = 'no speed-up: the work is not equal: tokens per frame isolated 4.00, continuous 3.00'
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(('budget', 'used'), [('auto', 5), ('unlimited', 'unlimited'), ('50', 50)])
def test_every_budget_is_measured(budget, used, tmp_path, capsys):
    out = tmp_path / 'a.json'
    short = ['--tokens', '4', '--rounds', '1', '--frames', '2', '--modes', 'isolated,continuous']
    assert main([*TINY, *short, '--budget', budget, '--json', str(out)]) == 0
    found = json.loads(out.read_text())
    assert found['setting']['budget'] == used and found['setting']['rows'] == 1
    times = found['phases_ms']
    costs = times['prefill'] + times['act'] + 4 * times['decode_1']
    assert found['ideal'] == pytest.approx((costs + times['prefill']) / costs)
    assert ("'auto' needs a camera" in capsys.readouterr().out) == (budget == 'auto')


def test_sweep_covers_its_grid(tmp_path):
    own = ['--denoise-steps', '2,1', '--tokens', '3,6', '--budget', '0,2,9', '--rounds', '1']
    files = ['--json', str(tmp_path / 'a.json'), '--plots', str(tmp_path)]
    assert main(['--preset', 'sweep', *TINY, *own, '--frames', '1', *files]) == 0
    found = json.loads((tmp_path / 'a.json').read_text())
    points = {
        (p['mode'], p['denoise_steps'], p['tokens'], p.get('budget')): p for p in found['sweep']
    }
    assert len(points) == len(found['sweep'])
    assert set(points) == {
        (mode, n, *rest)
        for n in (1, 2)
        for mode, *rest in [
            *((mode, tokens, None) for mode in ('isolated', 'shared_kv') for tokens in (3, 6)),
            *(('continuous', *tk) for tk in ((0, 0), (3, 2), (3, 3), (6, 2), (6, 6))),
        ]
    }
    for (_, _, tokens, _), point in points.items():
        assert point['tokens_per_frame'] == tokens
        assert (point['ttft_ms'] > 0) == (tokens > 0)
    assert found['setting']['denoise_steps'] == 2 and found['setting']['budget'] == 2
    assert (tmp_path / 'trade_off.png').stat().st_size > 10_000


def test_the_whole_sweep_is_that_of_the_paper():
    grid = Grid()
    assert tuple(grid.denoise_steps) == (5, 10, 15, 20) and tuple(grid.tokens) == (
        5,
        10,
        15,
        20,
        30,
    )
    points = grid.points(Setting(), 'continuous')
    assert {(p.tokens, p.budget) for p in points} >= {(0, 0), (5, 1), (30, 5), (30, 30), (10, 10)}
    room = grid.room(Setting()).limits()
    for point in points:
        assert point.limits().max_rows <= room.max_rows and point.tokens <= room.max_new_tokens


@pytest.mark.parametrize('execution', ['eager', 'fused', 'graphs'])
def test_a_timeline_shows_every_phase_of_every_execution(execution):
    setting = Setting(dtype='float32', prompt_tokens=20, tokens=4, budget=2, execution=execution)
    timeline = record(build_model(setting), setting, 0.05)
    kinds = [span.phase for span in timeline.spans]
    frames = kinds.count('prefill')
    assert frames >= 1 and kinds.count('act') == kinds.count('admit') == frames
    assert kinds.count('decode') >= frames
    for one, following in zip(timeline.spans, timeline.spans[1:], strict=False):
        assert one.began_ns < one.ended_ns <= following.began_ns


def test_roofline_of_the_real_model_on_known_chips():
    """Against the figures of the model's published sizes: 3 views, 968 tokens, bf16."""
    arch = Pi05Arch(**SIZES['full'], horizon=50)
    setting = Setting(size='full', horizon=50)
    h200 = roofline_ms(CHIPS['H200'], arch, setting, 2, [8])
    assert h200['vision'] == pytest.approx(0.84, rel=0.1)
    assert h200['prefill'] - h200['vision'] == pytest.approx(5.0, rel=0.1)
    assert h200['act'] == pytest.approx(1.5, rel=0.1)
    assert h200['decode_1'] == pytest.approx(1.17, rel=0.05)
    assert h200['decode_8'] == pytest.approx(1.20, rel=0.05)
    assert h200['frame without language'] == pytest.approx(7.4, rel=0.05)
    assert h200['continuous'] == pytest.approx(13.3, rel=0.05)
    assert h200['isolated'] == pytest.approx(48, rel=0.05)
    small = roofline_ms(CHIPS['RTX 4090'], arch, setting, 2, [])
    assert small['prefill'] == pytest.approx(4.0 + 24.1, rel=0.1)
    assert small['decode_1'] == pytest.approx(5.04, rel=0.05)


@pytest.mark.parametrize('family', FAMILIES)
@pytest.mark.parametrize('share', [0.5, 1.5])
def test_what_does_not_fit_into_free_memory_is_refused_before_it_is_built(
    family, share, monkeypatch, capsys
):
    """share: free memory, in times of the weights; KV pools count as well."""
    own = ['--preset', 'tiny', '--family', family, '--tokens', '4000', '--budget', '500']
    monkeypatch.setattr(FAMILIES[family], 'build_model', None)
    setting = Setting(family=family, dtype='float32', prompt_tokens=40, device='meta')
    weights = sum(4 * p.numel() for p in FAMILIES[family].network(setting).parameters())
    asked = []
    monkeypatch.setattr(
        'oxygen_ros.bench.families.available_bytes',
        lambda device: asked.append(device) or share * weights,
    )
    assert main(own) == 2
    said = capsys.readouterr().err
    assert '4 KV pools of' in said and 'that are free on cpu: choose a smaller size' in said
    assert asked == [torch.device('cpu')]


@pytest.mark.parametrize('preset', ['paper', 'sweep', 'growth', 'arrivals'])
def test_the_pools_that_are_checked_are_those_that_are_made(preset, monkeypatch):
    """Bytes of the KV pools that live at once, against what was counted before."""
    made, alive = Engine.__init__, []

    def noted(self, *arguments, **keywords):
        made(self, *arguments, **keywords)
        alive.append(weakref.ref(self))
        sizes = [e().pool for e in alive if e() is not None]
        most.append(sum(pool.rows * (pool.capacity + 1) * pool.slot_bytes for pool in sizes))

    most = []
    monkeypatch.setattr(Engine, '__init__', noted)
    own = ['--preset', preset, *TINY, '--tokens', '4', '--budget', '2', '--rounds', '1']
    plan = read_plan([*own, '--frames', '1', '--seconds', '1'])
    model = build_model(plan.room)
    sizes = [kv_size(model.spec, limits, 4).bytes for limits in plan.pools]
    assert main([*own, '--frames', '1', '--seconds', '1']) == 0
    gc.collect()
    assert max(most) <= sum(sizes)

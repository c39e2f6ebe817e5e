"""What /diagnostics says of numbers that a healthy node never has."""

from diagnostic_msgs.msg import DiagnosticStatus

from oxygen_ros.ros import parameters
from oxygen_ros.ros.diagnostics import Rates, Report, status_msg
from oxygen_ros.ros.health import Health
from oxygen_ros.ros.step_watch import StepWatch
from oxygen_ros.types import EngineStats


def engine_entry(problems=None, **stats):
    report = Report(
        now_ns=0,
        state='serving',
        detail='',
        values=parameters.check_all({'checkpoint': 'c', 'robot': 'r'}),
        stats=EngineStats(**stats),
        effective={},
        dropped={},
        missed_ticks=0,
        problems=problems or {},
    )
    array = Health('/oxygen').message(report, status_msg(report, Rates()))
    return next(entry for entry in array.status if entry.name.endswith('engine'))


def test_a_way_of_execution_that_failed_is_a_warning():
    assert engine_entry(execution='compiled').level == DiagnosticStatus.OK
    entry = engine_entry(execution='eager', fallback='compiled failed: no C++ compiler')
    assert entry.level == DiagnosticStatus.WARN
    assert 'runs as eager: compiled failed: no C++ compiler' in entry.message


def test_a_step_that_does_not_end_is_an_error():
    assert engine_entry(problems={'engine': 'stuck'}).level == DiagnosticStatus.ERROR


def test_a_step_is_stuck_after_a_second_and_five_times_the_usual():
    now_s = [100.0]
    watch = StepWatch(lambda: now_s[0])

    def after(seconds):
        now_s[0] += seconds
        return watch.problem()

    watch.begin()
    assert not after(1.0)
    assert after(0.5).startswith('no step of the engine has ended for 2 s')
    watch.end()
    assert not watch.problem()
    watch.begin()
    assert not after(7.0)
    assert after(1.0) == 'no step of the engine has ended for 8 s (usual: 1.50 s)'

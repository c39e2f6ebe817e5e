"""What /diagnostics says of numbers that a healthy node never has."""

from diagnostic_msgs.msg import DiagnosticStatus

from oxygen_ros.ros import parameters
from oxygen_ros.ros.diagnostics import Rates, Report, status_msg
from oxygen_ros.ros.health import Health
from oxygen_ros.types import EngineStats


def engine_entry(**stats):
    report = Report(
        now_ns=0,
        state='serving',
        detail='',
        values=parameters.check_all({'checkpoint': 'c', 'robot': 'r'}),
        stats=EngineStats(**stats),
        effective={},
        dropped={},
        missed_ticks=0,
    )
    array = Health('/oxygen').message(report, status_msg(report, Rates()))
    return next(entry for entry in array.status if entry.name.endswith('engine'))


def test_a_way_of_execution_that_failed_is_a_warning():
    assert engine_entry(execution='compiled').level == DiagnosticStatus.OK
    entry = engine_entry(execution='eager', fallback='compiled failed: no C++ compiler')
    assert entry.level == DiagnosticStatus.WARN
    assert 'runs as eager: compiled failed: no C++ compiler' in entry.message

"""Why words are late, by what the engine says of itself."""

import pytest

from oxygen_ros.ros.word_waits import ADMISSION, BUDGET, ROW, TURN, WordWaits
from oxygen_ros.types import EngineStats


@pytest.mark.parametrize(
    ('rows', 'to_admit', 'queued', 'reasons'),
    [
        (2, 0, 0, {BUDGET}),
        (2, 2, 0, {ADMISSION}),
        (2, 1, 0, {BUDGET, ADMISSION}),
        (2, 2, 1, {ADMISSION, ROW}),
        (0, 0, 0, set()),
    ],
)
def test_a_sleep_says_what_the_words_waited_for(rows, to_admit, queued, reasons):
    waits = WordWaits()
    waits.slept(EngineStats(rows_in_use=rows, to_admit=to_admit, queued=queued, rows_limit=2))
    assert set(waits.now) == set(waits.seconds) == reasons


def test_a_frame_that_is_answered_is_one_reason_for_all():
    waits = WordWaits()
    waits.stepped(EngineStats(rows_in_use=2, to_admit=1, rows_limit=4), answered=True)
    assert waits.now == (TURN,)
    waits.stepped(EngineStats(rows_in_use=2, to_admit=1, rows_limit=4), answered=False)
    assert waits.now == ()

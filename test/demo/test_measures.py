"""What the demo's subscriber counts."""

import pytest

from oxygen_ros import msg
from oxygen_ros.demo.measures import Measures, percentile
from oxygen_ros.ros.messages import time_msg

MS = 1_000_000


def chunk(stamp_ns, frame, horizon=10):
    message = msg.ActionChunk(frame=frame, horizon=horizon)
    message.header.stamp = time_msg(stamp_ns)
    return message


def token(request_id, text, token_id=1, reason=''):
    return msg.LanguageToken(
        id=request_id, task='memory', text=text, token=token_id, final=bool(reason), reason=reason
    )


def test_rates_are_means_between_the_first_and_the_last_message():
    measures = Measures(['memory'])
    for i in range(11):  # 10 a second, 20 ms after their stamps
        measures.on_chunk(chunk(i * 100 * MS, frame=7 + i), i * 100 * MS + 20 * MS)
    for i in range(71):
        measures.on_step(i * 1_000 * MS // 70)
    measures.on_status(msg.EngineStatus(frames=19, rows_max=3, kv_bytes=5))
    summary = measures.summary()
    assert summary['seconds'] == 1.0
    assert (summary['chunks'], summary['frames']) == (11, 12)
    assert (summary['frames_per_s'], summary['actions_per_s']) == (10.0, 100.0)
    assert summary['action_stream_hz'] == pytest.approx(70.0, abs=0.01)
    assert summary['camera_to_chunk_ms_p50'] == summary['camera_to_chunk_ms_p99'] == 20.0
    assert (summary['rows_max'], summary['kv_bytes_max']) == (3, 5)


def test_answers_are_kept_by_request_and_only_words_are_counted():
    measures = Measures(['memory'])
    for message in (
        token('a', 'one '),
        token('a', 'two', reason='stop'),
        token('b', 'three'),
        token('c', 'no room', token_id=-1, reason='refused'),
        token('b', '', token_id=-1, reason='cancelled'),
    ):
        measures.on_token(message)
    summary = measures.summary()
    assert (summary['tokens'], summary['requests_done'], summary['requests_refused']) == (3, 1, 1)
    assert measures.answers['memory'].request_id == 'b'
    assert measures.answers['memory'].text == ''


def test_no_chunks_are_counted_after_the_end():
    measures = Measures(['memory'])
    measures.on_chunk(chunk(0, 0), MS)
    measures.close()
    measures.on_chunk(chunk(2 * MS, 1), 3 * MS)
    assert measures.summary()['chunks'] == 1 and not measures.complete()
    measures.on_status(msg.EngineStatus(frames=1))
    assert measures.complete()


@pytest.mark.parametrize(
    ('values', 'percent', 'expected'),
    [
        ([], 50, 0.0),
        ([3.0], 99, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.0),
        (list(range(1, 101)), 99, 99),
        ([1.239], 50, 1.24),
    ],
)
def test_percentile(values, percent, expected):
    assert percentile(values, percent) == expected

"""The page: one file that needs nothing else, says what the JSON says, escapes what it quotes."""

import base64
import io
import json
import re
from html.parser import HTMLParser

import pytest
from bags import REQUEST, request, session, write_bag
from PIL import Image

from oxygen_ros.demo.recording import JOINTS
from oxygen_ros.replay import cli


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of plots."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.source = [], [], text
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return ' '.join(' '.join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(bag, checkpoint, folder, code=0):
    """Replay a bag with --html; the report and the page."""
    report, page = folder / 'report.json', folder / 'page.html'
    given = cli.main([
        str(bag), '--checkpoint', str(checkpoint), '--robot', 'demo', '--set', 'denoise_steps=2',
        '--json', str(report), '--html', str(page),
    ])  # fmt: skip
    assert given == code
    return json.loads(report.read_text()), Page(page.read_text())


@pytest.fixture(scope='module')
def spoken(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp('spoken')
    asked = [(REQUEST, 5 + 33 * k, request(f'q{k}', max_tokens=4)) for k in range(2)]
    asked.append((REQUEST, 7, request('<b>&', task='poetry')))
    bag = write_bag(folder / 'bag', session(frames=4, extra=asked))
    return page_of(bag, checkpoint, folder)


def test_it_needs_no_other_file_and_no_network(spoken):
    _, found = spoken
    assert not found.all('link') and not found.all('script') and not found.all('iframe')
    for _, attributes in found.tags:
        for name in ('src', 'href', 'xlink:href', 'data'):
            assert (attributes.get(name) or 'data:').startswith(('data:', '#'))
    assert not re.search(r'@import|url\((?!#|["\']?data:)', found.source)
    assert {'name': 'viewport', 'content': 'width=device-width, initial-scale=1'} in found.all(
        'meta'
    )
    assert 'prefers-color-scheme: dark' in found.source


def test_plots_for_each_joint_and_numbers_as_in_the_json(spoken):
    report, found = spoken
    # motion, error over the horizon and seams of each joint; latency; the engine's timeline
    assert len(found.all('svg')) == 3 * len(JOINTS) + 2
    assert 'currentColor' in found.source and '#0b0c0d' not in found.source
    for name in JOINTS:
        assert f'{report["scores"]["error"][name]["p90"]:.4g}' in found.text
    for words in ('4 of 4 frames answered', 'standing still', 'tokens/s', 'Nothing was dropped'):
        assert words in found.text
    for phase in ('prefill', 'act', 'decode'):
        assert phase in found.text


def test_words_stand_beside_the_picture_of_their_frame(spoken):
    report, found = spoken
    pictures = found.all('img')
    answered = [answer for answer in report['requests'] if answer['frame'] >= 0]
    assert len(answered) == 2 and len(pictures) == 4  # of both cameras
    assert pictures[0]['alt'] == 'base_0_rgb of frame 0'
    data = base64.b64decode(pictures[0]['src'].removeprefix('data:image/jpeg;base64,'))
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == 'JPEG' and picture.size == (32, 24)
    for answer in answered:
        assert ' '.join(answer['text'].split()) in found.text


def test_what_it_quotes_is_escaped(spoken):
    _, found = spoken
    assert '<b>&' in found.text and '&lt;b&gt;&amp;' in found.source


def test_a_partial_report_says_so_on_top(checkpoint, tmp_path):
    lines = [line for line in session(frames=1) if line[0] != '/joint_states' or line[1] > 400]
    late = write_bag(tmp_path / 'bag', [*lines, *[(t, 900, v) for t, _, v in session(1)[1:2]]])
    report, found = page_of(late, checkpoint, tmp_path, code=1)
    assert not report['complete'] and report['totals']['chunks'] == 0
    assert f'Partial. {report["problem"]}' in found.text
    assert len(found.all('svg')) == 0

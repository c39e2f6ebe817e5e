"""Words to ids from a local folder, and ids to words as a stream."""

import json
import shutil
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.checkpoint.random_tokenizer import vocabulary, write_tokenizer
from oxygen_ros.processing.tokenizer import Tokenizer
from oxygen_ros.types import OxygenError

FOLDER = Path(__file__).parents[1] / 'golden' / 'pi05_lerobot' / 'checkpoint' / 'tokenizer'
GOLDEN = Tokenizer(FOLDER, 512)
BYTE_0 = 7  # id of <0x00> in the golden vocabulary


def streamed(tokenizer, ids):
    stream = tokenizer.detokenizer()
    return [stream.push(token_id) for token_id in ids] + [stream.flush()]


def bytes_of(text):
    return [BYTE_0 + byte for byte in text.encode()]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 511), st.integers(BYTE_0, BYTE_0 + 255)), max_size=60))
def test_deltas_joined_are_the_whole_text(ids):
    assert ''.join(streamed(GOLDEN, ids)) == GOLDEN.decode(ids)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_text_survives_encoding_and_streaming(text):
    ids = GOLDEN.encode(text, bos=True)
    assert ids[0] == GOLDEN.bos_id == 2
    assert ids[1:] == GOLDEN.encode(text, bos=False)
    specials = ('<pad>', '<eos>', '<bos>', '<unk>')
    if '\u2581' not in text and not any(special in text for special in specials):
        assert ''.join(streamed(GOLDEN, ids)) == text


def test_words_come_at_once_and_characters_when_they_are_whole():
    word = GOLDEN.encode(' cup', bos=False)
    assert len(word) == 1
    ids = [*word, *bytes_of('é'), *word, *bytes_of('日')]
    assert streamed(GOLDEN, ids) == [' cup', '', '', 'é cup', '', '', '', '日']


def test_half_a_character_at_the_end_is_shown_as_such():
    assert ''.join(streamed(GOLDEN, bytes_of('日')[:2])) == '\ufffd\ufffd'


def test_special_tokens_are_silent_even_inside_a_character():
    first, second = bytes_of('é')
    assert ''.join(streamed(GOLDEN, [first, GOLDEN.eos_id, second, GOLDEN.bos_id])) == 'é'


def test_ids_beyond_the_vocabulary_are_silent():
    assert ''.join(streamed(GOLDEN, [100_000])) == ''


def test_words_without_an_embedding_are_refused_not_passed_on():
    """PaliGemma's <image> is one id beyond the rows of its embedding."""
    last = Tokenizer(FOLDER, 511)
    assert last.encode('a red cup', bos=True)
    with pytest.raises(OxygenError, match='<image>.*no embedding'):
        last.encode('a <image> cup', bos=False)


def test_loading_never_touches_the_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError('the network was asked')

    monkeypatch.setattr(socket, 'socket', refuse)
    monkeypatch.setattr(socket, 'getaddrinfo', refuse)
    assert Tokenizer(FOLDER, 512).encode('pick', bos=True)


@pytest.mark.parametrize('content', ['', '{}', '{"model": {"type": "Other"}}'])
def test_broken_tokenizer_files_are_named(tmp_path, content):
    (tmp_path / 'tokenizer.json').write_text(content)
    with pytest.raises(OxygenError, match=f'{tmp_path}: tokenizer cannot be loaded'):
        Tokenizer(tmp_path, 512)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(OxygenError, match=f'{tmp_path}: has no tokenizer.json'):
        Tokenizer(tmp_path, 512)


def test_a_tokenizer_without_bos_is_refused(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / 'tokenizer')
    config = json.loads((folder / 'tokenizer_config.json').read_text())
    del config['bos_token']
    (folder / 'tokenizer_config.json').write_text(json.dumps(config))
    with pytest.raises(OxygenError, match='has bos id None'):
        Tokenizer(folder, 512)


def test_other_special_ids_are_refused(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / 'tokenizer')
    config = json.loads((folder / 'tokenizer_config.json').read_text())
    config['bos_token'], config['eos_token'] = config['eos_token'], config['bos_token']
    (folder / 'tokenizer_config.json').write_text(json.dumps(config))
    with pytest.raises(OxygenError, match="has eos id 2, PaliGemma's is 1: copy PaliGemma's"):
        Tokenizer(folder, 512)


def test_the_tokenizer_of_random_checkpoints(tmp_path):
    write_tokenizer(tmp_path, vocabulary(1024))
    made = Tokenizer(tmp_path, 1024)
    assert (made.encode('', bos=True), made.eos_id) == ([2], 1)
    prompt = 'Task: pick up the café cup, State: 12 -1 255;\nAction: '
    ids = made.encode(prompt, bos=True)
    assert ''.join(streamed(made, ids)) == made.decode(ids) == prompt
    assert len(made.encode(' pick up the red cup', bos=False)) == 5
    with pytest.raises(OxygenError, match='vocab_size is 100, at least'):
        vocabulary(100)


def test_a_folder_is_read_once_and_anew_when_it_has_changed(tmp_path):
    """Reading holds up every thread of a process: a load after a pre-flight must not do it."""
    folder = tmp_path / 'tokenizer'
    write_tokenizer(folder, vocabulary(700))
    first = Tokenizer(folder, 700)
    assert Tokenizer(folder, 700)._fast is first._fast
    words = first.encode('take the red cup', bos=False)
    write_tokenizer(folder, {t: 703 - i if i > 3 else i for t, i in vocabulary(700).items()})
    assert Tokenizer(folder, 10_000).encode('take the red cup', bos=False) != words

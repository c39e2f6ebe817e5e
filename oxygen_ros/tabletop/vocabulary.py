"""The tokenizer of the small model: whole words and numbers of this world, bytes for the rest."""

from __future__ import annotations

import re
from pathlib import Path

from oxygen_ros.checkpoint import random_tokenizer
from oxygen_ros.tabletop import language, tasks

_BYTES = tuple(f'<0x{byte:02X}>' for byte in range(256))
# Pieces of pi0.5's prompt, each one token: a short prefix is a fast one.
CUES = ('Task:', ',▁State:', ';\nAction:▁')
BINS = tuple(f'▁{number}' for number in range(-1, 256))
_PATTERN = r';\nAction:▁|,▁State:|Task:|▁?[A-Za-z]+|▁?-?[0-9]+|▁?[^▁A-Za-z0-9]'
_CHARACTERS = ('▁', '\n', *map(chr, range(33, 127)))


def words() -> list[str]:
    """Every word that an instruction, a question or an answer of this world may have."""
    texts = [task.text for task in tasks.all_tasks()]
    texts += [wording for wordings in language.QUESTIONS.values() for wording in wordings]
    texts += [language.EVERY_WORD, *tasks.COLOURS, *tasks.SIDES]
    return sorted({word for text in texts for word in re.findall('[A-Za-z]+', text)})


def vocabulary() -> dict[str, int]:
    """Token -> id, without holes."""
    spoken = [form for word in words() for form in (f'▁{word}', word)]
    tokens = [*random_tokenizer.SPECIAL, *_BYTES, *_CHARACTERS, *CUES, *BINS, *spoken]
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and its configuration into a folder."""
    random_tokenizer.write_tokenizer(folder, vocabulary(), _PATTERN)

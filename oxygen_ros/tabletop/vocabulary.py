"""The tokenizer of the small model: whole words and numbers of this world, bytes for the rest."""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from oxygen_ros.checkpoint.random_tokenizer import SPECIAL
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
    tokens = [*SPECIAL, *_BYTES, *_CHARACTERS, *CUES, *BINS, *spoken]
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and its configuration into a folder."""
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary(), [], unk_token='<unk>', fuse_unk=True, byte_fallback=True,
            ignore_merges=True,
        )
    )  # fmt: skip
    tokenizer.normalizer = normalizers.Replace(' ', '▁')
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PATTERN), 'isolated')
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token='<pad>',
        eos_token='<eos>',
        bos_token='<bos>',
        unk_token='<unk>',
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)

"""What Qwen-VL checkpoints share: a byte-level tokenizer, turns of a chat, streamed text."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from oxygen_ros.processing.prompt import checked_text
from oxygen_ros.types import OxygenError

IMAGE = '<|image_pad|>'
VIEW = f'<|vision_start|>{IMAGE}<|vision_end|>'
ANSWER = '<|im_end|>\n<|im_start|>assistant\n'  # the user's turn ends, the assistant's begins
_ENDS = ('<|im_end|>', '<|endoftext|>')


class QwenTokenizer:
    """A local Qwen tokenizer folder: words -> ids, and streamed ids -> words.

    longest: the most characters that one token stands for.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """vocab_size: rows of the embedding; no id at or above it is ever returned."""
        try:
            self._fast = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # the library raises bare Exception for bad files
            raise OxygenError(f'{folder}: tokenizer cannot be loaded ({error})') from error
        self._folder, self._vocab_size = folder, vocab_size
        # A token has a letter for each byte, and NFC joins at most 4 characters into 3 bytes.
        self.longest = 2 * max(map(len, self._fast.get_vocab()), default=1)
        self._added = {i: token.content for i, token in self._fast.added_tokens_decoder.items()}
        self._special = frozenset(
            i for i, token in self._fast.added_tokens_decoder.items() if token.special
        )
        known = set(self._added.values())
        missing = [token for token in (IMAGE, _ENDS[0]) if token not in known]
        if missing:
            raise OxygenError(
                f'{folder}: the tokenizer has no {", ".join(missing)}, as Qwen-VL has'
            )

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(i for i, content in self._added.items() if content in _ENDS)

    @property
    def image_id(self) -> int:
        """The placeholder of one image token."""
        return next(i for i, content in self._added.items() if content == IMAGE)

    def numbered(self, start: str) -> dict[int, int]:
        """Ids of tokens that are `start`, a number and '>' -> the number."""
        found = (
            (i, content[len(start) : -1])
            for i, content in self._added.items()
            if content.startswith(start)
        )
        return {i: int(number) for i, number in found if number.isdigit()}

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are written out. Raises OxygenError."""
        ids = self._fast.encode(checked_text(text), add_special_tokens=False)
        beyond = [i for i in ids if i >= self._vocab_size]
        if beyond:
            words = ', '.join(self._fast.convert_ids_to_tokens(beyond))
            raise OxygenError(f'the text holds {words}, which the model has no embedding for')
        return list(ids)

    def chat(self, content: Sequence[Any]) -> str:
        """What a user says in the model's chat format, up to where the assistant begins.

        content: texts, and {'type': 'image'} for each image. Raises OxygenError.
        """
        parts = [{'type': 'text', 'text': c} if isinstance(c, str) else c for c in content]
        message = {'role': 'user', 'content': parts}
        try:
            text = self._fast.apply_chat_template(
                [message],
                chat_template=self._template(),
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # of the template's own language
            raise OxygenError(
                f'{self._folder}: the chat template cannot be used ({error}); copy the complete '
                'base model, with chat_template.jinja or tokenizer_config.json'
            ) from error
        return str(text)

    def _template(self) -> str | None:
        """The chat format from where older folders have it; None for where the library looks."""
        older = self._folder / 'chat_template.json'
        if self._fast.chat_template is not None or not older.is_file():
            return None
        return str(json.loads(older.read_text(encoding='utf-8'))['chat_template'])

    def special_in(self, text: str) -> list[str]:
        """Special tokens that are written out in a text."""
        return [self._added[i] for i in sorted(self._special) if self._added[i] in text]

    def turn(self, words: str) -> list[int]:
        """Ids of a further turn of the user behind the assistant's first words, and of the mark
        that the assistant answers it; none of no words. Raises OxygenError.
        """
        said = self.checked(words, 'prompt')
        return self.encode(f'<|im_end|>\n<|im_start|>user\n{said}{ANSWER}') if said else []

    def checked(self, words: str, what: str) -> str:
        """The words. Raises OxygenError if they write out special tokens."""
        if special := self.special_in(words):
            raise OxygenError(f'the {what} holds {", ".join(special)}: leave special tokens out')
        return words

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds to the text, b'' for a special one."""
        if token_id in self._special:
            return b''
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._fast.convert_ids_to_tokens(token_id)
        return b'' if token is None else bytes(_byte_of()[character] for character in token)

    def detokenizer(self) -> ByteDetokenizer:
        """A stream of its own for one answer."""
        return ByteDetokenizer(self)


class ByteDetokenizer:
    """Turns one answer's ids into text as they come; bytes wait until they make a character."""

    def __init__(self, tokenizer: QwenTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder('utf-8')('replace')

    def push(self, token_id: int) -> str:
        """Text that this token completes, '' while bytes are held back."""
        return self._decoder.decode(self._tokenizer.bytes_of(token_id))

    def flush(self) -> str:
        """Text of what is held back; incomplete characters become U+FFFD."""
        return self._decoder.decode(b'', final=True)


@lru_cache(maxsize=1)
def _byte_of() -> dict[str, int]:
    """Character of a byte-level vocabulary -> its byte: printable bytes stand for themselves,
    the others for the characters from 256 on (GPT-2's rule).
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(256 + number): byte for number, byte in enumerate(others)}


def spread(text: str, tokens: Sequence[int]) -> str:
    """A prompt with one placeholder per image -> one per image token, images in order."""
    pieces = text.split(IMAGE)
    assert len(pieces) == len(tokens) + 1, f'{len(pieces) - 1} placeholders, {len(tokens)} images'
    spread = [piece + IMAGE * count for piece, count in zip(pieces, tokens, strict=False)]
    return ''.join([*spread, pieces[-1]])

"""A local tokenizer folder: words -> ids, and streamed ids -> words. Never the network."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from oxygen_ros.processing.prompt import checked_text
from oxygen_ros.types import OxygenError

SPECIAL_IDS = {'eos': 1, 'bos': 2}  # PaliGemma's, which the network was trained with
_BYTE = re.compile(r'<0x[0-9A-F]{2}>')


class Tokenizer:
    """PaliGemma's tokenizer, or one with its special ids, from a folder with tokenizer.json.

    longest: the most characters that one token stands for.
    """

    def __init__(self, folder: Path, vocab_size: int):
        """vocab_size: rows of the embedding; no id at or above it is ever returned."""
        if not (folder / 'tokenizer.json').is_file():
            raise OxygenError(f'{folder}: has no tokenizer.json; copy the tokenizer files there')
        try:
            self._fast, self.longest = _read(folder, _versions(folder))
        except Exception as error:  # the library raises bare Exception for bad files
            raise OxygenError(f'{folder}: tokenizer cannot be loaded ({error})') from error
        self._vocab_size = vocab_size
        self._special_ids = frozenset(
            i for i, token in self._fast.added_tokens_decoder.items() if token.special
        )
        self.eos_id = self._special('eos', folder)
        self.bos_id = self._special('bos', folder)

    def _special(self, name: str, folder: Path) -> int:
        token_id = getattr(self._fast, f'{name}_token_id')
        if token_id != SPECIAL_IDS[name]:
            raise OxygenError(
                f"{folder}: the tokenizer has {name} id {token_id}, PaliGemma's is "
                f"{SPECIAL_IDS[name]}: copy PaliGemma's tokenizer files there"
            )
        return SPECIAL_IDS[name]

    def encode(self, text: str, bos: bool) -> list[int]:
        """Ids of a text, with <bos> in front for a prefix. Raises OxygenError."""
        ids = self._fast.encode(checked_text(text), add_special_tokens=False)
        # PaliGemma's tokenizer knows <image>, one id beyond the embedding's rows.
        beyond = [i for i in ids if i >= self._vocab_size]
        if beyond:
            words = ', '.join(self._fast.convert_ids_to_tokens(beyond))
            raise OxygenError(f'the text holds {words}, which the model has no embedding for')
        return [self.bos_id, *ids] if bos else ids

    def decode(self, ids: list[int]) -> str:
        """Text of ids; special tokens are left out."""
        return self._fast.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def is_special(self, token_id: int) -> bool:
        """True for <bos>, <eos> and their like, which decode() leaves out."""
        return token_id in self._special_ids

    def is_byte(self, token_id: int) -> bool:
        """True for a token that stands for one byte of a character."""
        token = self._fast.convert_ids_to_tokens(token_id)
        return token is not None and _BYTE.fullmatch(token) is not None

    def detokenizer(self) -> Detokenizer:
        """A stream of its own for one answer."""
        return Detokenizer(self)


class Detokenizer:
    """Turns one answer's ids into text as they come; all deltas joined equal decode(ids).

    A run of byte tokens is held back until it ends, because whether its bytes make characters
    is decided by the whole run.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """Text that this token completes, '' while bytes are held back."""
        if self._tokenizer.is_special(token_id):
            return ''
        self._held.append(token_id)
        return '' if self._tokenizer.is_byte(token_id) else self.flush()

    def flush(self) -> str:
        """Text of what is held back; incomplete characters become U+FFFD."""
        held, self._held = self._held, []
        return self._tokenizer.decode(held) if held else ''


# A real vocabulary takes a second to read, in which the library holds Python's lock and no other
# thread runs. So what a pre-flight has read is not read again by the load that follows it.
@functools.lru_cache(maxsize=1)
def _read(
    folder: Path, versions: tuple[tuple[str, int, int], ...]
) -> tuple[PreTrainedTokenizerFast, int]:
    """The tokenizer and the length of its longest token."""
    fast = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return fast, max(map(len, fast.get_vocab()), default=1)


def _versions(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of change of every file: another one is read anew."""
    found = ((file.name, file.stat()) for file in sorted(folder.iterdir()))
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)

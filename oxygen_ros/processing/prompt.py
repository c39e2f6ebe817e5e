"""The words of a frame's prefix: the task and, in the bidirectional layout, the state in digits.

Source: openpi models/tokenizer.py, LeRobot processor_pi05.py; the causal layout is OxyGen's.
A checkpoint trained without the state in its prompt has the bidirectional layout's task alone.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

import numpy as np

from oxygen_ros.types import OxygenError

NO_LIMIT = 2**62
# Left edges of 256 equal bins over [-1, 1]; below the first edge is bin -1.
_BIN_EDGES = np.linspace(-1, 1, 257)[:-1]


def state_bins(state: np.ndarray) -> np.ndarray:
    """Normalised state [D] -> bins -1..255, int [D]. Raises OxygenError if not finite."""
    wrong = np.flatnonzero(~np.isfinite(state))
    if wrong.size:
        raise OxygenError(f'state is not a finite number at index {wrong.tolist()}')
    return np.digitize(state, _BIN_EDGES) - 1


def clean_task(text: str, layout: str) -> str:
    """The task text as the checkpoint's layout wants it."""
    text = text.strip().replace('_', ' ').replace('\n', ' ')
    if layout == 'causal':
        text = text.lower()
        text = text[:-1] if text.endswith(tuple(string.punctuation)) else text
    return text


def compose(task: str, bins: Sequence[int] | None, layout: str) -> tuple[str, ...]:
    """The prompt of a frame around a cleaned task, in pieces that are made tokens one by one.

    bins: of the state, None where the checkpoint's prompt does not hold it.
    """
    if layout == 'causal':
        return (f'Task: {task}. Subtask: ',)
    if bins is None:
        return (task, '\n')
    return (f'Task: {task}, State: {" ".join(map(str, bins))};\nAction: ',)


def fit_prompt(
    task: str,
    bins: Sequence[int] | None,
    layout: str,
    max_tokens: int,
    encode: Callable[[str, bool], list[int]],
    longest: int = NO_LIMIT,
) -> tuple[list[int], bool]:
    """Token ids of the prompt, and whether the task text had to be shortened to fit.

    encode: a piece of text, and whether <bos> stands in front of it, -> ids. longest: see
    shortened().
    Only the task is shortened, from its end; state and cue are always whole. Raises OxygenError
    when they alone exceed max_tokens.
    """

    def ids_of(length: int) -> list[int]:
        pieces = compose(task[:length], bins, layout)
        return [i for at, piece in enumerate(pieces) for i in encode(piece, at == 0)]

    return shortened(ids_of, len(task), max_tokens, longest)


def shortened(
    ids_of: Callable[[int], list[int]], length: int, max_tokens: int, longest: int = NO_LIMIT
) -> tuple[list[int], bool]:
    """Ids of a prompt with as much of its task as fits, and whether that is not all of it.

    ids_of: characters of the task, up to length -> ids. longest: the most characters that one
    token stands for; a text that cannot fit for its length alone is not made tokens. Raises
    OxygenError when even 0 exceed max_tokens.
    """

    def tried(characters: int) -> list[int] | None:
        """Ids if they fit."""
        ids = ids_of(characters) if characters <= max_tokens * longest else None
        return ids if ids is not None and len(ids) <= max_tokens else None

    if (whole := tried(length)) is not None:
        return whole, False
    fits, exceeds = 0, length
    best = ids_of(0)
    if len(best) > max_tokens:
        raise OxygenError(
            f'the prompt without its task has {len(best)} tokens, at most {max_tokens} fit; '
            'raise tokenizer_max_length in oxygen.json if the checkpoint was trained so'
        )
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        if (ids := tried(middle)) is not None:
            fits, best = middle, ids
        else:
            exceeds = middle
    return best, True


def checked_text(text: str) -> str:
    """The text, or OxygenError if it cannot be written in UTF-8, which a tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OxygenError(
            f'the text is broken at character {error.start}: {text[error.start]!r} is half of a '
            'character; send UTF-8'
        ) from error
    return text

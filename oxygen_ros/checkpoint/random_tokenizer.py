"""A tokenizer made here, offline, for checkpoints with random weights.

Special ids, spaces and byte fallback are PaliGemma's; the words are those of a robot at a table,
so that what a random network says looks like words.
"""

from __future__ import annotations

import string
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from oxygen_ros.types import OxygenError

SPECIAL = ('<pad>', '<eos>', '<bos>', '<unk>')
_BYTES = tuple(f'<0x{byte:02X}>' for byte in range(256))
_CHARACTERS = ('▁', '\n', *string.ascii_letters, *string.digits, *string.punctuation)
_CUES = ('Task', 'State', 'Action', 'Subtask')
_SAID = """
a an the this that it its i we you they and or but then so if when while before after now
is are was be has have can will should do does did not no yes there here what where which
of to in on at by for from with into onto over under above below behind beside between near
left right front back top bottom up down forward middle center edge corner side inside outside
one two three first second last next all both each other another some more less any only
robot arm arms gripper fingers hand wrist elbow shoulder joint joints base camera cameras view
table tabletop scene shelf drawer drawers cabinet door handle box bin basket tray mat board
cup cups mug bowl bowls plate plates glass bottle bottles can spoon fork knife pan pot lid
block blocks cube cubes ball toy toys brick book pen sponge towel cloth cable screw button
apple banana orange lemon pear carrot bread egg tomato potato snack fruit food water coffee
red green blue yellow white black orange purple pink brown grey silver golden wooden metal
small big large tall short long round square flat empty full open closed clean dirty heavy
light soft hard old new same different close far high low
pick place put move moves moving lift lifts lower raise reach reaches grasp grasps grip hold
holds release releases drop stack stacks push pull slide turn rotate twist open close press
pour wipe fold sort find look see sees take bring give hand wait stop start continue finish
keep go goes touch avoid align insert remove carry turn return rest check see need needs
object objects item items target goal task step steps path position place area space way
moved picked placed lifted grasped released opened closed stacked done ready safe stable
slowly carefully gently again still already almost just very too also because until
holding reaching picking placing opening closing waiting looking standing lying
"""
WORDS = tuple(dict.fromkeys(_SAID.split()))


def vocabulary(size: int) -> dict[str, int]:
    """Token -> id, filled up with <unusedN> so that ids have no holes. Raises OxygenError."""
    words = [f'▁{word}' for word in WORDS]
    tokens = [*SPECIAL, *_BYTES, *_CHARACTERS, *_CUES, *(f'▁{cue}' for cue in _CUES), *words]
    if size < len(tokens):
        raise OxygenError(f'vocab_size is {size}, at least {len(tokens)} are needed')
    tokens += [f'<unused{i}>' for i in range(size - len(tokens))]
    return {token: i for i, token in enumerate(tokens)}


def spoken_ids(vocab: dict[str, int]) -> list[int]:
    """Ids a random network shall say: words and the two marks that end a phrase."""
    return [vocab[f'▁{word}'] for word in WORDS] + [vocab['.'], vocab[',']]


def write_tokenizer(folder: Path, vocab: dict[str, int], pieces: str = '▁?[A-Za-z]+') -> None:
    """Write tokenizer.json and its configuration into a folder.

    pieces: a regular expression of what is looked up whole; what is not known falls to characters,
    then to bytes.
    """
    tokenizer = Tokenizer(
        models.BPE(
            vocab, [], unk_token='<unk>', fuse_unk=True, byte_fallback=True, ignore_merges=True
        )
    )
    tokenizer.normalizer = normalizers.Replace(' ', '▁')
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), 'isolated')
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

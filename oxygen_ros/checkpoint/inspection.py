"""From a folder to a CheckpointInfo: headers and small files are read, weights are not."""

from __future__ import annotations

from pathlib import Path

from oxygen_ros.checkpoint import lerobot, openpi
from oxygen_ros.checkpoint.arch import EMBED, LANGUAGE, LM_HEAD, Pi05Arch, arch_from_shapes
from oxygen_ros.checkpoint.files import read_json
from oxygen_ros.checkpoint.info import EPS_RULES, CheckpointInfo, Described, Normalization
from oxygen_ros.checkpoint.options import Options, read_options
from oxygen_ros.checkpoint.quantiles import fitted
from oxygen_ros.checkpoint.weights import FLOATS, StoredTensor, read_index, weight_files
from oxygen_ros.types import OxygenError


def inspect_checkpoint(path: str | Path) -> CheckpointInfo:
    """Read a pi0.5 checkpoint's description, LeRobot's or openpi's. Raises OxygenError.

    The format is recognised by what the files hold, not by the folder's name.
    """
    folder = Path(path)
    options = read_options(_checked_folder(folder))
    described = _describe(folder, options)
    files = weight_files(folder)
    index = read_index(files)
    _refuse_pi0(index, folder)
    arch = _arch(index, described, options, folder)
    normalization = _normalization(described, options)
    action_dim = len(normalization.action_q01)
    if action_dim > arch.action_dim_padded:
        raise OxygenError(
            f'{folder}: the statistics have {action_dim} actions, '
            f'the network only {arch.action_dim_padded}'
        )
    return CheckpointInfo(
        path=folder,
        format=described.format,
        family='pi05',
        arch=arch,
        cameras=described.cameras,
        state_dim=len(normalization.state_q01),
        action_dim=action_dim,
        normalization=normalization,
        tokenizer_dir=_tokenizer_dir(described, options, folder),
        tokenizer_max_length=options.tokenizer_max_length or described.tokenizer_max_length,
        image_resolution=(arch.image_size, arch.image_size),
        dtype=FLOATS[index[LANGUAGE + 'layers.0.self_attn.q_proj.weight'].dtype],
        tied_head=not (EMBED in index and LM_HEAD in index),
        time_rule=options.time_rule or described.time_rule,
        image_resize=options.image_resize or described.image_resize,
        prompt_layout=options.prompt_layout or 'bidirectional',
        weight_files=files,
    )


def _checked_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise OxygenError(
            f'{folder}: is not a folder; give the checkpoint folder that holds model.safetensors'
        )
    if (folder / 'params').is_dir() and not (folder / 'model.safetensors').exists():
        raise OxygenError(
            f"{folder}: is openpi's JAX checkpoint; convert it once with openpi's "
            'examples/convert_jax_model_to_pytorch.py and give the converted folder'
        )
    return folder


def _describe(folder: Path, options: Options) -> Described:
    path = folder / 'config.json'
    config = read_json(path) if path.exists() else {}
    try:
        if 'type' in config:
            return lerobot.describe(folder, config, options)
        if 'action_horizon' in config or (folder / 'assets').is_dir():
            return openpi.describe(folder, config, options)
    except OxygenError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise OxygenError(
            f'{folder}: a JSON file holds something of the wrong kind ({error}); compare '
            "config.json and the processor files with the maker's"
        ) from error
    raise OxygenError(
        f'{folder}: neither LeRobot\'s layout (config.json with "type": "pi05") nor openpi\'s '
        '(config.json with "action_horizon", assets/<id>/norm_stats.json)'
    )


def _refuse_pi0(index: dict[str, StoredTensor], folder: Path) -> None:
    stored = index.get('time_mlp_in.weight')
    if stored is not None and len(stored.shape) == 2 and stored.shape[1] == 2 * stored.shape[0]:
        raise OxygenError(f'{folder}: {stored.key} is of pi0, supported: pi0.5')


def _arch(
    index: dict[str, StoredTensor], described: Described, options: Options, folder: Path
) -> Pi05Arch:
    stated = {**described.sizes, **options.architecture}
    shapes = {name: stored.shape for name, stored in index.items()}
    arch = arch_from_shapes(shapes, stated, str(folder))
    resolution = described.image_resolution
    if resolution is not None and resolution != (arch.image_size, arch.image_size):
        raise OxygenError(
            f'{folder / "config.json"}: image_resolution is {list(resolution)}, '
            f'the vision tower was made for {arch.image_size} x {arch.image_size}'
        )
    return arch


def _normalization(described: Described, options: Options) -> Normalization:
    state_dim = options.state_dim or described.state_dim
    action_dim = options.action_dim or described.action_dim
    rule = options.eps_rule or described.eps_rule
    return Normalization(
        *fitted(described.state, state_dim, cut=options.state_dim is not None),
        *fitted(described.action, action_dim, cut=options.action_dim is not None),
        eps_rule=rule,
        eps=described.eps if rule == described.eps_rule else EPS_RULES[rule],
    )


def _tokenizer_dir(described: Described, options: Options, folder: Path) -> Path:
    places = (options.tokenizer,) if options.tokenizer else described.tokenizer_dirs
    for place in places:
        if (place / 'tokenizer.json').is_file():
            return place
    raise OxygenError(
        f'{folder}: no tokenizer.json in {" or ".join(str(place) for place in places)}; copy '
        'PaliGemma\'s tokenizer files there, or name their folder under "tokenizer" in oxygen.json'
    )

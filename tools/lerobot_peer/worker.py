"""Runs in LeRobot's environment: its own pi0.5 and processors, at any size, over pipes.

LeRobot knows two sizes only, so its constructors are given the checkpoint's. Its loader prints
its failures and goes on with random weights, so the weights are filled here, strictly.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lerobot
import torch
import transformers
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.pi05 import modeling_pi05
from safetensors.torch import load_file, save_file

from lerobot_peer.pipe import serve

_VLM = 'model.paligemma_with_expert.paligemma.'
_EMBED = _VLM + 'model.language_model.embed_tokens.weight'
_HEAD = _VLM + 'lm_head.weight'
_UNUSED = {'model.paligemma_with_expert.gemma_expert.lm_head.weight'}
_held: dict[str, Any] = {}


def load(
    checkpoint: str,
    arch: dict[str, Any],
    dtype: str,
    vision_dtype: str,
    threads: int,
    device: str = 'cpu',
) -> dict[str, Any]:
    """Build the policy and fill it. vision_dtype: LeRobot itself keeps the images in float32."""
    torch.set_num_threads(threads)
    _set_sizes(arch)
    config = PreTrainedConfig.from_pretrained(checkpoint)
    config.device, config.dtype = device, dtype
    policy = modeling_pi05.PI05Policy(config).to(device).eval()
    _fill(policy, Path(checkpoint))
    vlm = policy.model.paligemma_with_expert.paligemma.model
    for part in (vlm.vision_tower, vlm.multi_modal_projector):
        part.to(getattr(torch, vision_dtype))
    _held.update(policy=policy, checkpoint=checkpoint, device=device)
    versions = {m.__name__: m.__version__ for m in (lerobot, torch, transformers)}
    return {'versions': versions}


def _set_sizes(arch: dict[str, Any]) -> None:
    """Have the two closed variants, vision tower and vocabulary be of the checkpoint's sizes."""
    shared = {'depth': 'depth', 'num_heads': 'heads', 'num_kv_heads': 'kv_heads'}
    shared |= {'head_dim': 'head_dim'}

    def gemma(variant: str) -> modeling_pi05.GemmaConfig:
        which = 'lm' if variant == 'gemma_2b' else 'expert'
        own = {'width': arch[f'{which}_width'], 'mlp_dim': arch[f'{which}_mlp']}
        return modeling_pi05.GemmaConfig(**own, **{ours: arch[k] for ours, k in shared.items()})

    vlm = modeling_pi05.PaliGemmaForConditionalGenerationWithPiGemma
    expert = modeling_pi05.PiGemmaForCausalLM

    def sized_vlm(config: Any) -> torch.nn.Module:
        vision, config.text_config.vocab_size = config.vision_config, arch['vocab_size']
        vision.hidden_size, vision.num_hidden_layers = arch['vision_width'], arch['vision_layers']
        vision.num_attention_heads = arch['vision_heads']
        vision.intermediate_size, vision.patch_size = arch['vision_mlp'], arch['patch']
        vision.projection_dim = arch['lm_width']
        return vlm(config)

    def sized_expert(config: Any) -> torch.nn.Module:
        config.vocab_size = arch['vocab_size']
        return expert(config)

    modeling_pi05.get_gemma_config = gemma
    modeling_pi05.PaliGemmaForConditionalGenerationWithPiGemma = sized_vlm
    modeling_pi05.PiGemmaForCausalLM = sized_expert


def _fill(policy: torch.nn.Module, folder: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob('model*.safetensors')):
        tensors.update(load_file(file))
    for name, other in ((_EMBED, _HEAD), (_HEAD, _EMBED)):
        tensors.setdefault(name, tensors[other])
    missing, unexpected = policy.load_state_dict(tensors, strict=False)
    assert not unexpected, f'unexpected: {unexpected}'
    assert set(missing) <= _UNUSED, f'missing: {missing}'


def act(inputs: str, output: str, steps: int, repeats: int) -> dict[str, Any]:
    """Actions [1, H, A] of processed tensors, written to output; times in ms.

    inputs: a file with pixels [C, 3, h, w], image_mask [C], tokens and token_mask [1, T],
    noise [1, H, A].
    """
    stored = load_file(inputs)
    times = []
    for _ in range(repeats):
        began = time.perf_counter_ns()
        given = {name: tensor.to(_held['device']) for name, tensor in stored.items()}
        actions = (
            _held['policy']
            .model.sample_actions(
                [image[None] for image in given['pixels']],
                [mask[None] for mask in given['image_mask']],
                given['tokens'],
                given['token_mask'],
                noise=given['noise'],
                num_steps=steps,
            )
            .cpu()
        )
        times.append((time.perf_counter_ns() - began) / 1e6)
    save_file({'actions': actions}, output)
    return {'ms': times}


def observe(inputs: str, output: str, task: str, steps: list[int]) -> dict[str, Any]:
    """What LeRobot makes of one raw observation, all the way to robot units, written to output.

    inputs: a file with image.<slot> uint8 [H, W, 3], state [D], noise [1, H, A].
    """
    given = load_file(inputs)
    before, after = _processors()
    batch = before(_raw_batch(given, task))
    policy = _held['policy']
    images, masks = policy._preprocess_images(batch)
    tokens = batch['observation.language.tokens']
    token_mask = batch['observation.language.attention_mask'].bool()
    made = {
        'tokens': tokens,
        'token_mask': token_mask,
        'normalized_state': batch['observation.state'],
        'images_processed': torch.cat(images),
        'image_masks': torch.stack(masks, dim=1),
    }
    with _Prefix(policy.model) as prefix:
        for count in steps:
            made[f'actions.{count}'] = policy.model.sample_actions(
                images, masks, tokens, token_mask, noise=given['noise'], num_steps=count
            )
    width = policy.config.output_features['action'].shape[0]
    made['actions_robot'] = after(made[f'actions.{steps[0]}'][:, :, :width])
    made |= prefix.tensors()
    save_file({name: tensor.contiguous().clone() for name, tensor in made.items()}, output)
    return {}


def _processors() -> tuple[Any, Any]:
    """Pre- and postprocessor from the checkpoint's files, with its local tokenizer."""
    folder = Path(_held['checkpoint'])
    name = {'tokenizer_name': str(folder / 'tokenizer')}
    return make_pre_post_processors(
        _held['policy'].config,
        pretrained_path=str(folder),
        preprocessor_overrides={'tokenizer_processor': name},
    )


def _raw_batch(given: dict[str, torch.Tensor], task: str) -> dict[str, Any]:
    """As LeRobot's robots hand it over: floats in [0, 1], channels first."""
    images = {
        f'observation.images.{name.removeprefix("image.")}': image.permute(2, 0, 1) / 255.0
        for name, image in given.items()
        if name.startswith('image.')
    }
    return {**images, 'observation.state': given['state'], 'task': task}


class _Prefix:
    """Looks on while the model makes its prefix, and keeps the last one."""

    def __init__(self, model: Any) -> None:
        self._model, self._expert = model, model.paligemma_with_expert
        self._cache: Any = None
        self._valid: torch.Tensor | None = None

    def __enter__(self) -> _Prefix:
        forward, embed = self._expert.forward, self._model.embed_prefix

        def seen_forward(*args: Any, **kwargs: Any) -> Any:
            outputs, cache = forward(*args, **kwargs)
            if cache is not None:  # the expert's forwards return none
                self._cache = cache
            return outputs, cache

        def seen_embed(*args: Any) -> Any:
            embedded, self._valid, kinds = embed(*args)
            return embedded, self._valid, kinds

        self._expert.forward, self._model.embed_prefix = seen_forward, seen_embed
        return self

    def __exit__(self, *_: object) -> None:
        del self._expert.forward, self._model.embed_prefix

    def tensors(self) -> dict[str, torch.Tensor]:
        """Keys and values [1, kv heads, S, D] by layer, and which of the S slots are valid."""
        assert self._valid is not None
        made = {'prefix_pad_mask': self._valid}
        for number, layer in enumerate(self._cache.layers):
            made |= {f'prefix_k.{number}': layer.keys, f'prefix_v.{number}': layer.values}
        return made


if __name__ == '__main__':
    serve({'load': load, 'act': act, 'observe': observe})

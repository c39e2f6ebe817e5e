"""python -m oxygen_ros.tabletop.train OUT: trains the small model of the tabletop.

Seeded and resumable: started again with the same arguments it goes on where it was. A step's
examples, noise and learning rate depend on the seed and the number of the step alone. OUT becomes
a checkpoint folder that Policy.from_checkpoint reads; the weights are a running mean.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed
from tqdm import tqdm

from oxygen_ros.checkpoint import Pi05Info, inspect_checkpoint
from oxygen_ros.models.pi05 import Pi05
from oxygen_ros.models.pi05_sizes import Pi05Options
from oxygen_ros.processing.pi05 import Pi05Processor
from oxygen_ros.replay.files import make_folder
from oxygen_ros.tabletop.batches import Batch, Batcher
from oxygen_ros.tabletop.checkpoint import (
    architecture,
    write_description,
    write_weights,
)
from oxygen_ros.tabletop.network import Training, initialise
from oxygen_ros.tabletop.samples import examples
from oxygen_ros.types import OxygenError

# Of the losses. Once it is known where things are, words about it count more.
WEIGHTS = {'action': 1.0, 'words': 0.25, 'offset': 1.0, 'spot': 0.5, 'meant': 0.5}
_LATE_WORDS = 1.0
_WARM_UP, _FALL, _LAST_RATE = 200, 0.4, 0.01
_MEAN_OVER = 400  # steps of the running mean of the weights, at most
_STATE = 'training.pt'


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to train. batch: examples per step, of all workers together; rate: the highest.

    draws: noises and flow times per example. block: examples that a worker makes at a time.
    """

    steps: int = 3300
    batch: int = 64
    rate: float = 1.2e-3
    draws: int = 4
    seed: int = 0
    workers: int = 2
    block: int = 512
    save_every_s: float = 180.0

    def check(self) -> None:
        """Refuse what cannot be trained with. Raises OxygenError."""
        for name in ('steps', 'batch', 'draws', 'workers', 'block'):
            if getattr(self, name) < 1:
                raise OxygenError(f'--{name} is {getattr(self, name)}: must be at least 1')
        if self.batch % self.workers or self.block % (self.batch // self.workers):
            raise OxygenError(
                f'--batch {self.batch} must be a multiple of --workers {self.workers}, and '
                f"--block {self.block} of a worker's part of the batch"
            )


class Trainer:
    """Model, optimizer and running mean of one worker; all workers hold the same."""

    def __init__(self, folder: Path, settings: Settings, worker: int = 0) -> None:
        self.folder, self.settings, self.worker = folder, settings, worker
        self.options = Pi05Options(max_cameras=3, max_prompt_tokens=64)
        self.model = Pi05(architecture(), self.options, torch.device('cpu'), torch.float32)
        self.model.tie_head()
        initialise(self.model, settings.seed)
        torch.manual_seed(settings.seed)  # for the heads that are of training alone
        self.training = Training(self.model, settings.draws)
        self.optimizer = torch.optim.AdamW(
            _groups(self.training), lr=settings.rate, betas=(0.9, 0.98), eps=1e-9
        )
        self.mean = [p.detach().clone() for p in self.model.parameters()]
        self.step = 0
        if worker == 0 and not (folder / 'config.json').exists():
            write_description(folder, *_statistics(settings.seed))
            write_weights(folder, self.model.checkpoint_parameters())
        _wait_for_all()
        info = inspect_checkpoint(folder)
        assert isinstance(info, Pi05Info), f'{folder} was written above as pi0.5'
        self.batcher = Batcher(Pi05Processor(info))

    def run(self) -> Iterator[dict[str, float]]:
        """Train to the end, a dict of losses per step."""
        share = self.settings.batch // self.settings.workers
        per_block = self.settings.block // share
        block, data = -1, None
        while self.step < self.settings.steps:
            wanted, part = divmod(self.step, per_block)
            if wanted != block:
                block, data = wanted, self._block(wanted)
            assert data is not None
            yield self._train(data.rows(part * share, (part + 1) * share))

    def _block(self, number: int) -> Batch:
        rng = np.random.default_rng([self.settings.seed, 1 + self.worker, number])
        return self.batcher.batch(rng, examples(rng, self.settings.block))

    def _train(self, batch: Batch) -> dict[str, float]:
        generator = torch.Generator().manual_seed(
            (self.settings.seed * 1_000_003 + self.step) * 64 + self.worker
        )
        rows, draws = len(batch.prompt), self.settings.draws
        noise = torch.randn(rows, draws, *batch.actions.shape[1:], generator=generator)
        # As pi0.5: more often near the noise, where the way is chosen.
        times = torch.rand(rows, draws, generator=generator) ** (1 / 1.5)
        times = 1.0 - (1.0 - times) * 0.999
        with torch.autocast('cpu', torch.bfloat16):
            losses = self.training(batch, noise, times)
        weights = dict(WEIGHTS)
        if self.step >= self.settings.steps // 2:
            weights['words'] = _LATE_WORDS
        total = sum(weights[name] * loss for name, loss in losses.items())
        self.optimizer.zero_grad()
        total.backward()
        self._share_gradients()
        torch.nn.utils.clip_grad_norm_(self.training.parameters(), 1.0)
        rate = self.settings.rate * _schedule(self.step, self.settings.steps)
        for group in self.optimizer.param_groups:
            group['lr'] = rate
        self.optimizer.step()
        self.step += 1
        keep = min(1 - 1 / _MEAN_OVER, self.step / (self.step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self.mean, list(self.model.parameters()), 1 - keep)
        return {name: loss.item() for name, loss in losses.items()}

    def _share_gradients(self) -> None:
        if self.settings.workers == 1:
            return
        parameters = list(self.training.parameters())
        flat = torch.cat([p.grad.flatten() for p in parameters])
        distributed.all_reduce(flat)
        flat /= self.settings.workers
        for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad.copy_(part.view_as(p))

    def save(self) -> None:
        """Write the checkpoint folder and what is needed to go on."""
        mean_of = {id(p): m for p, m in zip(self.model.parameters(), self.mean, strict=True)}
        named = self.model.checkpoint_parameters().items()
        write_weights(self.folder, {name: mean_of[id(p)] for name, p in named})
        state = {
            'settings': dataclasses.asdict(self.settings),
            'step': self.step,
            'training': self.training.state_dict(),
            'optimizer': self.optimizer.state_dict(),
            'mean': self.mean,
        }
        part = self.folder / f'{_STATE}.part'
        torch.save(state, part)
        os.replace(part, self.folder / _STATE)

    def resume(self) -> None:
        """Go on from what save() wrote, if anything. Raises OxygenError if settings differ."""
        state = _check_resumable(self.folder, self.settings)
        if state is None:
            return
        self.training.load_state_dict(state['training'])
        self.optimizer.load_state_dict(state['optimizer'])
        for own_mean, mean in zip(self.mean, state['mean'], strict=True):
            own_mean.copy_(mean)
        self.step = state['step']


def _check_resumable(folder: Path, settings: Settings) -> dict[str, Any] | None:
    """What save() wrote there, if anything. Raises OxygenError if it is of other settings."""
    file = folder / _STATE
    if not file.exists():
        return None
    state: dict[str, Any] = torch.load(file, weights_only=True)
    own = dataclasses.asdict(settings)
    differ = [
        f'{key} was {value}, is {own[key]}'
        for key, value in state['settings'].items()
        if own[key] != value and key not in ('steps', 'save_every_s')
    ]
    if differ:
        raise OxygenError(
            f'{file} is of another training ({", ".join(differ)}): give the same settings '
            'or another folder'
        )
    return state


def _groups(training: Training) -> list[dict[str, Any]]:
    """Weight decay for matrices alone."""
    matrices = [p for p in training.parameters() if p.dim() > 1]
    vectors = [p for p in training.parameters() if p.dim() == 1]
    return [
        {'params': matrices, 'weight_decay': 0.02},
        {'params': vectors, 'weight_decay': 0.0},
    ]


def _schedule(step: int, steps: int) -> float:
    """Share of the highest rate: a short rise, level, and a straight fall at the end."""
    rise = (step + 1) / min(_WARM_UP, max(1, steps // 10))
    left = (steps - step) / (_FALL * steps)
    return min(1.0, rise, _LAST_RATE + (1 - _LAST_RATE) * left)


def _statistics(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and spread of actions [4], as the processor makes them relative."""
    made = examples(np.random.default_rng([seed, 0]), 2000)
    anchor = made.scenes.joints[:, None] * np.array([1.0, 1.0, 1.0, 0.0])
    moved = (made.actions - anchor).reshape(-1, 4)
    return moved.mean(0), moved.std(0)


def _wait_for_all() -> None:
    if distributed.is_initialized():
        distributed.barrier()


def train(folder: Path, settings: Settings, worker: int = 0) -> None:
    """Train into a folder; worker 0 writes and shows progress. Raises OxygenError."""
    torch.set_num_threads(1)
    if settings.workers > 1:
        store = distributed.FileStore(str(folder / 'workers'), settings.workers)
        distributed.init_process_group(
            'gloo', store=store, rank=worker, world_size=settings.workers
        )
    trainer = Trainer(folder, settings, worker)
    trainer.resume()
    _wait_for_all()
    log = _Log(trainer) if worker == 0 else None
    saved = time.monotonic()
    for losses in trainer.run():
        if log is None:
            continue
        log.add(losses)
        if time.monotonic() - saved > settings.save_every_s:
            trainer.save()
            saved = time.monotonic()
    if worker == 0:
        trainer.save()


class _Log:
    """Progress bar and a line of mean losses now and then."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._bar = tqdm(total=trainer.settings.steps, initial=trainer.step, mininterval=5.0)
        self._recent: list[dict[str, float]] = []

    def add(self, losses: dict[str, float]) -> None:
        """Count a step."""
        self._recent.append(losses)
        self._bar.update()
        if self._trainer.step % 50 == 0:
            means = {k: sum(r[k] for r in self._recent) / len(self._recent) for k in losses}
            text = ' '.join(f'{name} {value:.4f}' for name, value in means.items())
            self._bar.write(f'step {self._trainer.step}: {text}', file=sys.stderr)
            self._recent.clear()


def main(argv: Sequence[str] | None = None) -> int:
    """Train from the command line; returns 0, or 2 when something given cannot be used."""
    parser = argparse.ArgumentParser(prog='oxygen_ros.tabletop.train', description=__doc__)
    parser.add_argument('out', type=Path, help='checkpoint folder')
    for field in dataclasses.fields(Settings):
        name = '--' + field.name.replace('_', '-')
        parser.add_argument(name, type=type(field.default), default=field.default)
    given = vars(parser.parse_args(argv))
    folder = given.pop('out')
    settings = Settings(**given)
    try:
        make_folder(folder, 'OUT')
        settings.check()
        _check_resumable(folder, settings)
    except OxygenError as error:
        print(f'train: {error}', file=sys.stderr)
        return 2
    (folder / 'workers').unlink(missing_ok=True)
    # Children are forked before any thread runs, and are named as this process is.
    children = []
    for worker in range(1, settings.workers):
        child = os.fork()
        if child == 0:
            train(folder, settings, worker)
            os._exit(0)
        children.append(child)
    try:
        train(folder, settings)
    finally:
        for child in children:
            os.waitpid(child, 0)
        (folder / 'workers').unlink(missing_ok=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())

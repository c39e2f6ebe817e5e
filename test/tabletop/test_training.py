"""Training computes what inference computes, learns, and goes on where it was."""

import dataclasses

import numpy as np
import pytest
import torch

from oxygen_ros.policy import Policy
from oxygen_ros.tabletop.batches import IGNORED, Batcher
from oxygen_ros.tabletop.network import Training
from oxygen_ros.tabletop.render import CAMERAS, observations
from oxygen_ros.tabletop.samples import HORIZON, examples
from oxygen_ros.tabletop.train import Settings, Trainer, main, train
from oxygen_ros.types import LanguageRequest, OxygenError

TINY = Settings(steps=4, batch=8, draws=2, block=16, workers=1, seed=3)
STEPS = 10  # of Euler


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A checkpoint after a few steps."""
    folder = tmp_path_factory.mktemp('trained')
    train(folder, TINY)
    return folder


@pytest.fixture(scope='module')
def policy(folder):
    return Policy.from_checkpoint(folder, cpu_threads=1, denoise_steps=STEPS)


@pytest.fixture(scope='module', params=[0, 2], ids=['three cameras', 'two cameras'])
def batch(request, policy):
    made = examples(np.random.default_rng(1), 3)
    seed = next(s for s in range(99) if cameras_drawn(s) == 3 - (request.param > 0))
    return made, Batcher(policy._processor).batch(np.random.default_rng(seed), made)


def cameras_drawn(seed):
    """How many cameras Batcher gives a batch: its first draw decides."""
    return 2 if np.random.default_rng(seed).random() < 0.15 else 3


@pytest.fixture(scope='module')
def training(policy):
    import copy

    return Training(copy.deepcopy(policy.engine.model), draws=1)


def seen(made, batch):
    cameras = CAMERAS[: batch.pixels.shape[1]]
    return observations(made.scenes, [task.text for task in made.tasks], cameras)


@torch.no_grad()
def test_actions_in_training_are_those_of_inference(policy, training, batch):
    made, rows = batch
    noise = np.random.default_rng(2).standard_normal((3, HORIZON, 4)).astype(np.float32)
    prefix, _, _, mask = training.prefix(rows, training.see(rows))
    actions = torch.from_numpy(noise)[:, None]
    for step in range(STEPS):
        times = torch.full((3, 1), 1 - step / STEPS)
        actions = actions - training.velocity(prefix, mask, rows, actions, times) / STEPS
    for row, observation in enumerate(seen(made, rows)):
        chunk = policy.act(observation, noise=noise[row])
        own = policy._processor.robot_actions(actions[row, 0].numpy(), observation.state)
        np.testing.assert_allclose(chunk.actions, own, atol=2e-6)


@torch.no_grad()
def test_words_in_training_are_those_of_inference(policy, training, batch):
    made, rows = batch
    prefix, _, _, mask = training.prefix(rows, training.see(rows))
    logits = training.say(prefix, mask, rows)
    for row, observation in enumerate(seen(made, rows)):
        for asked in range(rows.words.shape[1]):
            begin = int((rows.next_words[row, asked] != IGNORED).nonzero()[0, 0])
            ids = rows.words[row, asked, : begin + 1].tolist()
            prompt = policy._processor._tokenizer.decode(ids)
            policy.act(observation, requests=[LanguageRequest('q', prompt=prompt, max_tokens=1)])
            (delta,) = policy.stream()
            assert delta.token_id == int(logits[row, asked, begin].argmax())


def test_a_batch_teaches_the_answer_and_its_end(policy, batch):
    _, rows = batch
    for row in range(3):
        taught = rows.next_words[row, 0]
        answer = taught[taught != IGNORED].tolist()
        assert answer[-1] == policy._processor.eos_id
        begin = int((taught != IGNORED).nonzero()[0, 0])
        said = rows.words[row, 0, begin + 1 : begin + len(answer)].tolist()
        assert said == answer[:-1]


def test_a_few_steps_make_the_losses_smaller(tmp_path):
    settings = dataclasses.replace(TINY, steps=20, rate=3e-3)
    trainer = Trainer(tmp_path, settings)
    trainer.batcher.batch = lambda rng, made, once=[]: (
        once[0] if once else once.append(Batcher.batch(trainer.batcher, rng, made)) or once[0]
    )  # the same examples again and again
    losses = list(trainer.run())
    for name in losses[0]:
        first, last = (np.mean([one[name] for one in part]) for part in (losses[:3], losses[-3:]))
        assert last < 0.8 * first, name


def test_a_resumed_training_ends_as_an_uninterrupted_one(tmp_path, folder):
    begun = Trainer(tmp_path, TINY)
    run = begun.run()
    for _ in range(2):
        next(run)
    begun.save()
    del begun, run
    train(tmp_path, TINY)
    once, twice = (path / 'model.safetensors' for path in (folder, tmp_path))
    assert once.read_bytes() == twice.read_bytes()


def test_another_training_is_not_resumed(folder):
    with pytest.raises(OxygenError, match='seed was 3, is 4'):
        train(folder, dataclasses.replace(TINY, seed=4))


def test_two_workers_train_one_model(tmp_path):
    arguments = ['--steps', '2', '--batch', '8', '--block', '8', '--draws', '1', '--workers', '2']
    assert main([str(tmp_path), *arguments]) == 0
    chunk = Policy.from_checkpoint(tmp_path, cpu_threads=1).info
    assert chunk.horizon == HORIZON
    assert not (tmp_path / 'workers').exists()


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (['/proc/x'], 'OUT /proc/x cannot be made'),
        (['{folder}', '--workers', '0'], '--workers is 0: must be at least 1'),
        (['{folder}', '--batch', '3'], '--batch 3 must be a multiple of --workers 2'),
    ],
)
def test_a_training_that_cannot_be_is_refused(tmp_path, capsys, arguments, words):
    assert main([text.format(folder=tmp_path) for text in arguments]) == 2
    text = capsys.readouterr().err
    assert words in text and len(text.splitlines()) == 1

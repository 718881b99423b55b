"""The norms of gradient noise: by hand, of known tails, and in the command."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from command import refused, run
from federation import (
    DATA,
    PARTS,
    TASK,
    as_float64,
    federation,
    gradient,
)

from fedjax_muon.runs import config, directory
from fedjax_muon.simulation import batching
from fedjax_muon.simulation.gradient_noise import noise_norms
from fedjax_muon.tasks.heavy_tails import gaussian, noisy, pareto
from fedjax_muon.tasks.metrics import hill
from fedjax_muon.tasks.task import as_argument

KEY = jax.random.key(3)
PARAMS = TASK.init(jax.random.key(1))


def with_noise(noise):
    """Full gradients, with this noise."""
    simulation = federation(sampler=batching.full_batch)
    task = as_argument(TASK._replace(grad=noisy(TASK.grad, noise)))
    inputs = simulation.inputs._replace(task=task)
    return dataclasses.replace(simulation, inputs=inputs)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [batching.shuffled_epochs, batching.full_batch])
def test_norms_by_hand(sampler):
    found = noise_norms(federation(sampler=sampler), PARAMS, KEY, batches=5)
    assert found.shape == (len(PARTS), 5)
    for client, key in enumerate(jax.random.split(KEY, len(PARTS))):
        gradients = []
        for batch_key in jax.random.split(key, 5):
            rows_key, _ = jax.random.split(batch_key)
            size = len(PARTS[client])
            places = np.asarray(sampler(rows_key, size, 1, 4, 32))[0]
            ids = PARTS[client][places[places >= 0]]
            parts = gradient(as_float64(PARAMS), DATA.x_train[ids], DATA.y_train[ids])
            gradients.append(np.concatenate([part.ravel() for part in parts]))
        expected = np.linalg.norm(gradients - np.mean(gradients, axis=0), axis=1)
        np.testing.assert_allclose(found[client], expected, atol=1e-5)
        assert (expected > 1e-3).any() == (sampler is not batching.full_batch)


@pytest.mark.slow
@pytest.mark.parametrize("tail", [1.2, 1.7])
def test_heavy_tails_are_seen(tail):
    """The largest of a batch's entries rules its norm, whose tail is theirs."""
    norms = noise_norms(with_noise(pareto(tail)), PARAMS, KEY, batches=2000)
    assert abs(hill(norms, 200) - tail) < 4 * tail / 200**0.5


@pytest.mark.slow
def test_light_tails_are_seen():
    norms = noise_norms(with_noise(gaussian()), PARAMS, KEY, batches=2000)
    assert hill(norms, 200) > 6
    # 3 * 5 + 3 independent normal entries
    np.testing.assert_allclose(np.mean(norms**2), 18, rtol=0.02)


def test_one_batch_has_no_mean_to_be_apart_from():
    with pytest.raises(ValueError, match="batches must be at least 2, got 1"):
        noise_norms(federation(), PARAMS, KEY, batches=1)


SMALL = ("--num-clients", 4, "--cohort-size", 2, "--rounds", 2, "--hidden", 4)


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    place, figure = tmp_path / "run", tmp_path / "noise.png"
    words = ("train", "--algorithm", "fedavg", *SMALL, "--output", place)
    run(*words)
    capsys.readouterr()
    draw = ("noise", place, "--batches", 50, "--output", figure)
    run(*draw, "--tail", 0.1)
    said = capsys.readouterr().out
    index, error = map(float, re.findall(r"[\d.]+", said)[:2])
    assert "from the 20 largest of 200 norms" in said
    assert index > 2
    assert error == pytest.approx(index / 20**0.5, abs=0.006)
    assert figure.stat().st_size > 1000
    run(*draw, "--tail", 0.1)
    assert capsys.readouterr().out == said
    run(*draw, "--tail", 0.1, "--seed", 1)
    assert capsys.readouterr().out != said
    figure.unlink()
    for tail in (0, 1):
        message = refused(capsys, *draw, "--tail", tail)
        assert message == f"tail must lie in (0, 1), got {float(tail)}"
    assert "batches must be at least 2" in refused(capsys, *draw, "--batches", 1)
    few = refused(capsys, *draw, "--batches", 2)
    assert few.startswith("the tail would have 0 norms; take more --batches or")
    unnamed = refused(capsys, *draw, "--output", tmp_path / "noise")
    assert unnamed.startswith("a figure's name must end in .png, .pdf, .svg, got")
    assert not figure.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        (config.Run("fedavg", {}, 0, config.Config()), "has no checkpoint yet; train"),
        (
            config.Run("fedavg", {}, 0, config.Config(sampler="full_batch")),
            "are all of a client's examples, and have no noise",
        ),
        (
            config.Comparison(("fedavg",), {}, {}, (0,), config.Config()),
            "holds several runs; name the directory of one",
        ),
    ],
)
def test_runs_that_cannot_be_measured_are_refused(what, message, tmp_path, capsys):
    place = tmp_path / "run"
    directory.create(place, what)
    assert message in refused(capsys, "noise", place)

"""Regression, compared with least squares in NumPy."""

import flax.linen as nn
import jax
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.cli.main import main
from fedjax_muon.tasks.task import Batch
from tests.support.error_lines import one_line

RNG = np.random.default_rng(0)
N = 60
X = RNG.normal(size=(N, 3))
Y = 1000 + 50 * X @ [1.0, -2.0, 0.5] + RNG.normal(size=N)
WARD = np.array(["a", "b", "c"])[np.arange(N) % 3]


class Linear(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(x)


def dataset(**how):
    test = X[:9], Y[:9]
    return fm.data.from_arrays(X, targets=Y, **({"test": test} | how))


def test_the_gradient_is_that_of_least_squares():
    data = dataset()
    task = fm.tasks.regression(Linear(), data)
    params = task.init(jax.random.key(0))
    weight = np.float32([1, 2, 0, 1])
    batch = Batch(data.x_train[:4], data.y_train[:4], weight)
    found = task.grad(params, batch, jax.random.key(1))["Dense_0"]
    x, y = data.x_train[:4].astype(float), (Y[:4] - Y.mean()) / Y.std()
    w = np.asarray(params["Dense_0"]["kernel"], float)[:, 0]
    errors = x @ w + float(params["Dense_0"]["bias"][0]) - y
    share = weight / weight.sum()
    np.testing.assert_allclose(
        found["kernel"][:, 0], 2 * (share * errors) @ x, rtol=1e-4
    )
    np.testing.assert_allclose(found["bias"], [2 * share @ errors], rtol=1e-4)
    scores = task.evaluate(params, batch.x, batch.y)
    np.testing.assert_allclose(scores["loss"], errors**2, rtol=1e-4)
    np.testing.assert_allclose(scores["error"], abs(errors) * Y.std(), rtol=1e-4)
    empty = batch._replace(weight=0 * weight)
    zero = task.grad(params, empty, jax.random.key(1))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(zero))


def test_federated_training_finds_least_squares():
    """With all clients and whole batches, FedAvg of one step is gradient descent."""
    data = dataset(owners=WARD)
    problem = fm.problems.regression(data, model=lambda _: Linear())
    how = {"local_steps": 1, "batch_size": 20, "cohort": 3, "progress": False}
    result = fm.train(fm.fedavg(lr=0.2), problem, rounds=60, **how)
    design = np.column_stack([X, np.ones(N)])
    best = design @ np.linalg.lstsq(design, Y, rcond=None)[0]
    np.testing.assert_allclose(result.predict(X).labels, best, atol=0.2)
    last = result.records[-1]
    assert last["train_mae"] == pytest.approx(abs(best - Y).mean(), abs=0.02)
    assert last["train_loss"] == pytest.approx(((best - Y) / Y.std()).var(), abs=1e-4)
    assert str(result).startswith("test mean absolute error")
    assert "client_accuracy_min" not in last


def test_targets_of_a_table(tmp_path, capsys):
    path = tmp_path / "costs.csv"
    head, words = "a,b,c,ward,sex,cost", np.array(["F", "M"])
    rows = [
        f"{a},{b},{c},{ward},{words[i % 2]},{y}"
        for i, ((a, b, c), ward, y) in enumerate(zip(X, WARD, Y, strict=True))
    ]
    path.write_text("\n".join([head, *rows]))
    roles = {"target": "cost", "owner": "ward"}
    plain = fm.data.from_csv(path, exclude=["sex"], **roles)
    mixed = fm.data.from_csv(path, categories="one_hot", **roles)
    arrays = fm.data.from_arrays(X, targets=Y, owners=WARD)
    np.testing.assert_equal(
        plain._replace(columns=None), arrays._replace(name="costs.csv")
    )
    np.testing.assert_array_equal(mixed.y_train, plain.y_train)
    np.testing.assert_allclose(mixed.x_train[:, :3], plain.x_train, atol=1e-6)
    assert mixed.x_train.shape[1] == 5
    assert "targets from 7" in repr(plain)
    assert plain.y_train.dtype == np.float32
    path.write_text("\n".join([head, *rows[:-1], "1,2,3,a,F,"]))
    with one_line("line 61: column 'cost' is blank", path):
        fm.data.from_csv(path, missing="mean", categories="one_hot", **roles)
    with one_line("line 61: '' in column 'cost' is not a finite number", path):
        fm.data.from_csv(path, exclude=["sex"], **roles)
    with one_line("give either label or target, got 'sex' and 'cost'"):
        fm.data.from_csv(path, label="sex", target="cost")
    path.write_text("\n".join([head, *rows]))
    problem = f"regression:{path},target=cost,owner=ward,exclude=sex"
    main(
        [
            "compare",
            "fedavg:lr=0.1",
            "--problem",
            problem,
            "--rounds",
            "1",
            "--seeds",
            "0",
            "--directory",
            str(tmp_path / "run"),
        ]
    )
    assert "mean absolute error" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["partition", problem])
    assert "has targets, and no labels" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["deploy", str(tmp_path / "app"), "fedavg", "--problem", problem])
    assert "targets (regression) can only be simul" in capsys.readouterr().err


REFUSED = {
    "this dataset has targets and no classes; choose problems.regression": lambda: (
        fm.problems.classification(dataset())
    ),
    "this dataset has the classes 0, 1, 2, 3, 4, but no targets": lambda: (
        fm.problems.regression(fm.data.load("digits"))
    ),
    r"a model must map \(3, 3\) to numbers \(3, 1\), got \(3, 2\)": lambda: (
        fm.tasks.regression(fm.models.MLP(2), dataset())
    ),
    "give either y, the labels, or targets": lambda: fm.data.from_arrays(
        X, WARD, targets=Y
    ),
    "targets must be 60 finite numbers, one per example, got float64": lambda: (
        fm.data.from_arrays(X, targets=np.where(Y > 1000, np.nan, Y))
    ),
    "all training targets are 1; there is nothing to learn": lambda: (
        fm.tasks.regression(Linear(), dataset()._replace(y_train=np.ones(N)))
    ),
    "y_train must be 60 numbers on one axis, one per example, as there": lambda: (
        fm.data.check(dataset()._replace(y_train=np.array([*WARD])))
    ),
    "y_train has NaN or infinity in 1 of 60 examples": lambda: fm.data.check(
        dataset()._replace(y_train=np.where(Y[3] == Y, np.inf, Y))
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_other_data_and_models_are_refused(said):
    with one_line(said):
        REFUSED[said]()


@pytest.mark.slow
def test_agents_and_sweeps_rank_by_the_absolute_error(tmp_path):
    data = dataset(owners=WARD)
    problem = fm.problems.regression(data, graph="ring")
    how = {"rounds": 2, "progress": False, "batch_size": 8}
    found = fm.train(fm.decentralized.dsgd(lr=0.1), problem, **how)
    assert "test_mae" in found.records[-1]
    swept = fm.sweep([fm.fedavg], problem, {"lr": (0.001, 0.1)}, seeds=(0,), **how)
    assert swept["FedAvg"].chosen == {"lr": 0.1}
    assert len(found.predict(X).labels) == N

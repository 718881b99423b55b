"""Early stopping on metrics that are given."""

import jax
import pytest
from federation import DATA, TASK, cut

import fedjax_muon as fm
from fedjax_muon.simulation.early_stopping import early_stopping

NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "options", "stops"),
    [
        ([3, 2, 1, 1, 1], {"mode": "min", "patience": 2}, 4),
        ([3, 2, 2.5, 1, 2, 2], {"mode": "min", "patience": 2}, 5),
        ([1, 2, 1, 3, 2, 1, 0], {"mode": "max", "patience": 3}, 6),
        ([1, 2, 2.05, 2.09], {"mode": "max", "patience": 2, "min_change": 0.1}, 3),
        ([1, NAN, NAN, 2], {"mode": "max", "patience": 2}, 2),
        ([5, 4, 3, 2], {"mode": "min", "patience": 1}, None),
    ],
)
def test_it_stops_after_the_patience(values, options, stops):
    stop = early_stopping("loss", **options)
    answers = [stop(None, {"loss": value}) for value in values]
    assert (answers.index(True) if True in answers else None) == stops


def test_training_ends():
    simulation = fm.federate(
        fm.fedavg(0.0),
        TASK,
        DATA,
        cut([40, 40]),
        cohort_size=2,
        local_steps=1,
        batch_size=4,
    )
    stop = early_stopping("train_loss", patience=2, mode="min")
    state = simulation.init(jax.random.key(0))
    _, history = fm.train(
        simulation, state, rounds=50, evaluate_every=1, callbacks=[stop]
    )
    assert [row["round"] for row in history] == [0, 1, 2]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="patience must be at least 1, got 0"):
        early_stopping("train_loss", patience=0, mode="min")
    with pytest.raises(ValueError, match='"min" or "max", got \'less\''):
        early_stopping("train_loss", patience=1, mode="less")
    with pytest.raises(ValueError, match="min_change must be at least 0, got -1"):
        early_stopping("train_loss", patience=1, mode="min", min_change=-1)
    stop = early_stopping("loss", patience=1, mode="min")
    with pytest.raises(ValueError, match="no metric 'loss'; there are round, f1"):
        stop(None, {"round": 0, "f1": 1.0})

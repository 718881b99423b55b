"""Experiments on texts: where lower scores are better."""

from functools import partial

import jax
import numpy as np

import fedjax_muon as fm
from fedjax_muon import problems
from fedjax_muon.core.recipe import in_words

TEXTS = {"ann": 40 * "to be or not to be, ", "bob": 40 * "that is the question. "}
TINY = partial(problems.gpt, width=16, depth=1, heads=2)
PROBLEM = problems.text(TEXTS, clients=4, window=8, model=TINY)
HOW = {"local_steps": 4, "batch_size": 8, "progress": False}


def test_clients_have_pieces_or_documents_of_their_own():
    parts = PROBLEM.parts(0)
    np.testing.assert_array_equal(
        np.concatenate(parts), np.arange(len(PROBLEM.dataset.x_train))
    )
    owned = problems.text(TEXTS, window=8, divide=fm.partition.by_owner, model=TINY)
    owners = [set(owned.dataset.owners[part]) for part in owned.parts(0)]
    assert owners == [{0}, {1}]
    assert owned.sizes["cohort"] == 2
    assert in_words(owned.call["path"]) == "'2 texts'"


def test_methods_are_ranked_by_the_bits_of_a_byte(tmp_path):
    problem = problems.text(TEXTS, clients=2, window=8, model=TINY)
    methods = {"fast": fm.muloco(lr=0.02), "slow": fm.fedavg(lr=1e-5)}
    how = {**HOW, "rounds": 6, "evaluate_every": 3, "seeds": (0,)}
    done = fm.compare(methods, problem, directory=tmp_path / "compared", **how)
    fast, slow = (done.runs[name][0]["test_bits_per_byte"] for name in methods)
    assert fast[-1] < slow[-1]
    tokens = done.runs["fast"][0]["tokens"].tolist()
    assert tokens == [rounds * 2 * 4 * 8 * 8 for rounds in (0, 3, 6)]
    table = str(done.table())
    assert f"target: {min(fast) / 0.9:.3f}, the best / 0.9" in table
    assert "bits per byte" in table
    assert f"{fast[-1]:.3f}" in table


def test_a_sweep_takes_the_lowest_validation_score():
    how = {**HOW, "rounds": 4, "seeds": (0,), "extend": False}
    swept = fm.sweep([fm.muloco], PROBLEM, {"lr": (0.02, 1e-6)}, **how)["MuLoCo"]
    assert swept.best.hyper == {"lr": 0.02}
    scores = [point.last("validation_bits_per_byte")[0] for point in swept.points]
    assert scores[0] < scores[1]
    assert swept.points[0].runs[0]["tokens"][-1] == 4 * 4 * 4 * 8 * 8
    assert f"{scores[0]:.3f}" in str(swept.table())


def test_a_trained_model_continues_a_text():
    problem = problems.text({"ann": TEXTS["ann"]}, clients=2, window=16, model=TINY)
    how = HOW | {"local_steps": 20}
    done = fm.train(fm.diloco(lr=0.01), problem, rounds=20, **how)
    tokenizer = problem.dataset.tokenizer
    prompt = tokenizer.encode("to be or")
    ids = fm.models.generate(
        problem.model, done.state.params, prompt, 4, jax.random.key(0), top_k=1
    )
    assert tokenizer.decode(ids) == "to be or not"

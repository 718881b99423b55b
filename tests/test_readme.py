"""What the README shows is what the code does."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxprs import products

from benchmarks import table
from fedjax_muon import (
    data,
    decentralized,
    engine,
    minimax,
    models,
    plans,
    simulation,
    tasks,
    training,
)
from fedjax_muon.algorithms import ALL
from fedjax_muon.decentralized.private import PRIVATE

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
NOTEBOOK = (ROOT / "notebooks" / "own_transformation.py").read_text()


def lines(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip()]


def test_a_transformation_of_ones_own_is_federated_in_less_than_20_lines():
    code = BLOCKS[0]
    assert f"\n# %%\n{code}\n# %%" in NOTEBOOK
    assert len(lines(code)) < 20
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "README.md", "exec"), {})
    found = re.compile(r"test accuracy after 50 rounds: (\d\.\d+)").findall
    (shown,), (printed,) = found(README), found(output.getvalue())
    # equal to the digit on one kind of processor; others round differently
    assert float(printed) == pytest.approx(float(shown), abs=0.03)


def test_the_tables_of_speed_are_those_of_the_results():
    rows = table.read([ROOT / "benchmarks" / "results" / "works_cpu.jsonl"])
    assert "\n".join(table.markdown(rows)) in README


def test_the_algorithm_shown_is_the_one_in_the_package():
    path = ROOT / "fedjax_muon" / "algorithms" / "fedprox.py"
    source = re.sub(r'    """.*?"""\n', "", path.read_text(), flags=re.DOTALL)
    assert lines(BLOCKS[1]) == lines(source[source.index("class State") :])


def test_the_wrappers_shown_wrap():
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[2], "README.md", "exec"), names)
    assert len(lines(BLOCKS[2])) < 20
    params = {"w": jnp.ones((40, 30)), "b": jnp.ones(30)}
    for name in ("svd", "four_bits", "sparse"):
        algorithm = names[name](lambda params, batch, key: params)
        assert engine.init(algorithm, params, 2).server.params["w"].shape == (40, 30)
    still: Any = lambda params, batch, key: params
    task = tasks.Task(still, still, still)
    noisy = names["heavy_tailed"](task).grad(params, None, jax.random.key(0))
    assert (noisy["w"] != params["w"]).all()


def test_every_algorithm_is_in_the_table():
    shown = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", README, re.MULTILINE)
    tables = ALL, minimax.ALL, decentralized.ALL, PRIVATE
    methods: list[Any] = [row for table in tables for row in table.items()]
    assert shown == [(name, row.label, row.paper) for name, row in methods]


def test_the_minimax_task_shown_is_trained():
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[3], "README.md", "exec"), names)
    parts = np.array_split(np.arange(len(names["cells"].y_train)), 4)
    sizes = {"cohort_size": 4, "local_steps": 2, "batch_size": 8}
    simulated = simulation.simulate(
        names["algorithm"], names["task"], names["cells"], parts, **sizes
    )
    state, _ = simulated.train_rounds(simulated.init(jax.random.key(0)), 40)
    assert float(simulated.evaluate(state).test_auc) > 0.9
    exec(compile(BLOCKS[4], "README.md", "exec"), names)
    agents = names["agents"]()
    start = agents.init(jax.random.key(0))
    _, rows = training.run(agents, start, rounds=100, evaluate_every=50)
    assert rows[-1]["test_auc"] > 0.9


def test_private_clients_shown_are_trained():
    names: dict[str, Any] = {}
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(BLOCKS[5], "README.md", "exec"), names)
    assert output.getvalue().splitlines()[0] in README
    digits = data.load("digits")
    parts = np.array_split(np.arange(len(digits.y_train)), 100)
    task = tasks.classification(models.MLP(10, (8,)), digits.x_train.shape[1:])
    sizes = {"cohort_size": 20, "local_steps": 1, "batch_size": 8}
    cohorts = names["poisson_cohorts"]()
    simulated = simulation.simulate(
        names["algorithm"], task, digits, parts, cohorts=cohorts, **sizes
    )
    before = simulated.init(jax.random.key(0)).params["Dense_0"]["kernel"]
    after, _ = simulated.train_round(simulated.init(jax.random.key(0)))
    moved = after.params["Dense_0"]["kernel"] - before
    assert float(moved.std()) == pytest.approx(0.5 * 1.0 / 20, rel=0.2)  # the noise


def test_the_newton_schulz_shown_is_what_the_methods_compute():
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[6], "README.md", "exec"), names)
    params = {"kernel": jnp.ones((6, 6))}
    batches, still = jnp.ones((1, 1)), lambda params, batch, key: params

    def types(method):
        algorithm = method(still)
        play = engine.make_round(algorithm, 1, plans.loop)
        state = engine.init(algorithm, params, 1)
        rest = jnp.arange(1), batches, jnp.ones(1), jax.random.key(0)
        return [
            product.invars[0].aval.dtype
            for product in products(jax.make_jaxpr(play)(state, *rest).jaxpr)
        ]

    assert types(ALL["muloco"]) == 15 * [jnp.float32]
    assert types(names["half"]).count(jnp.bfloat16) == 10
    assert types(names["short"]) == 10 * [jnp.float32]


def test_the_files_of_the_map_exist():
    section = README[README.index("## Map") :]
    names = re.findall(r"`([\w/]+(?:\.py|/))`", section)
    assert len(names) > 10
    for name in names:
        places = (ROOT / name, ROOT / "fedjax_muon" / name)
        assert any(place.exists() for place in places), name

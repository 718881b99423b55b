"""What the README shows, and pages it leads to, is what the code does."""

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
from fedjax_muon import decentralized, engine, minimax, simulation, tasks
from fedjax_muon.algorithms import ALL, muloco
from fedjax_muon.algorithms.registry import Source
from fedjax_muon.core import Objective
from fedjax_muon.decentralized.private import PRIVATE
from fedjax_muon.engine import plans
from fedjax_muon.simulation import training

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
NOTEBOOK = (ROOT / "notebooks" / "own_transformation.py").read_text()


def blocks(path: Path) -> list[str]:
    """The Python of a page."""
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


RULE = blocks(DOCS / "how_to" / "rule.md")


def lines(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("page", "number"), [("README.md", 0), ("docs/how_to/rule.md", 1)]
)
def test_a_transformation_of_ones_own_is_federated_in_less_than_20_lines(page, number):
    code = blocks(ROOT / page)[number]
    assert len(lines(code)) < 20
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, page, "exec"), {})
    found = re.compile(r"test accuracy after 50 rounds: (\d\.\d+)").findall
    (shown,), (printed,) = found((ROOT / page).read_text()), found(output.getvalue())
    # equal to the digit on one kind of processor; others round differently
    assert float(printed) == pytest.approx(float(shown), abs=0.03)


def test_the_transformation_shown_is_in_the_notebook():
    assert f"\n# %%\n{RULE[1]}\n# %%" in NOTEBOOK


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_the_tables_of_speed_are_those_of_the_results():
    rows = table.read([ROOT / "results" / "benchmarks" / "workloads_cpu.jsonl"])
    tables = "\n".join(table.markdown(rows))
    assert tables in (DOCS / "speed.md").read_text()
    section = README[README.index("## Speed") : README.index("## Documentation")]
    some = [line for line in section.splitlines() if line.startswith("|")]
    assert len(some) == 4  # two of them are the header's
    assert set(some) <= set(tables.splitlines())
    (ours, optax) = re.findall(r"(\d+) ms, in optax (\d+) ms", section)[0]
    assert f"| 512 x 4608 | {ours} | {optax} | - |" in tables
    (ours, loop) = re.findall(r"([\d.]+) ms, a NumPy loop .* ([\d.]+) ms", section)[0]
    row = (
        f"| DPMixSGD (unclipped, no privacy), weights of the agents | {ours} | {loop} |"
    )
    assert row in (DOCS / "speed.md").read_text()


def test_the_algorithm_shown_is_the_one_in_the_package():
    path = ROOT / "fedjax_muon" / "algorithms" / "fedprox.py"
    source = re.sub(r'    """.*?"""\n', "", path.read_text(), flags=re.DOTALL)
    shown = blocks(DOCS / "how_to" / "algorithm.md")[0]
    assert lines(shown) == lines(source[source.index("from typing") :])


def test_the_new_algorithm_shown_has_at_most_45_lines():
    shown = blocks(DOCS / "how_to" / "algorithm.md")[1]
    assert len(re.split(r"\n\n\n", shown)[1:3]) == 2  # its state, and the function
    assert len("\n\n\n".join(re.split(r"\n\n\n", shown)[1:3]).splitlines()) <= 45


def test_the_wrappers_shown_wrap():
    names: dict[str, Any] = {}
    wrappers = blocks(DOCS / "algorithms" / "compression.md")[0]
    (noise,) = [b for b in blocks(DOCS / "how_to" / "model.md") if "noisy" in b]
    exec(compile(wrappers + noise, "compression.md", "exec"), names)
    assert len(lines(wrappers + noise)) < 20
    params = {"w": jnp.ones((40, 30)), "b": jnp.ones(30)}
    for name in ("svd", "four_bits", "sparse"):
        state = engine.init(names[name], params, 2)
        assert state.server.params["w"].shape == (40, 30)
    same: Any = lambda params, batch, key: params
    task = tasks.Task(same, same, same)
    noisy = names["heavy_tailed"](task).grad(params, None, jax.random.key(0))
    assert (noisy["w"] != params["w"]).all()


def test_every_algorithm_is_in_the_table():
    page = (DOCS / "algorithms" / "methods.md").read_text()
    shown = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    tables = ALL, minimax.ALL, decentralized.ALL, PRIVATE
    methods: list[Any] = [row for table in tables for row in table.items()]
    assert shown == [(name, m.label, m.paper, m.source) for name, m in methods]
    unverified = [name for name, m in methods if m.source is Source.UNVERIFIED]
    for front in README, (DOCS / "index.md").read_text():
        assert f"except [{len(unverified)} of {len(methods)}]" in front


def test_the_minimax_task_shown_is_trained():
    names: dict[str, Any] = {}
    (shown,) = blocks(DOCS / "algorithms" / "minimax.md")
    exec(compile(shown, "minimax.md", "exec"), names)
    parts = np.array_split(np.arange(len(names["cells"].y_train)), 4)
    sizes = {"cohort_size": 4, "local_steps": 2, "batch_size": 8}
    simulated = simulation.federate(
        names["algorithm"], names["task"], names["cells"], parts, **sizes
    )
    state, _ = simulated.train_rounds(simulated.init(jax.random.key(0)), 40)
    assert float(simulated.evaluate(state)["test_auc"]) > 0.9
    (shown,) = blocks(DOCS / "algorithms" / "decentralized.md")
    exec(compile(shown, "decentralized.md", "exec"), names)
    agents = names["agents"]
    start = agents.init(jax.random.key(0))
    _, rows = training.train(agents, start, rounds=100, evaluate_every=50)
    assert rows[-1]["test_auc"] > 0.9


def test_private_clients_shown_are_trained():
    names: dict[str, Any] = {}
    output = io.StringIO()
    page = DOCS / "algorithms" / "private.md"
    (shown,) = blocks(page)
    with contextlib.redirect_stdout(output):
        exec(compile(shown, "private.md", "exec"), names)
    assert output.getvalue().splitlines()[0] in page.read_text()
    simulated = names["simulation"]
    before = simulated.init(jax.random.key(0)).params["Dense_0"]["kernel"]
    after, _ = simulated.train_round(simulated.init(jax.random.key(0)))
    moved = after.params["Dense_0"]["kernel"] - before
    assert float(moved.std()) == pytest.approx(0.5 * 1.0 / 20, rel=0.2)  # the noise


def test_the_newton_schulz_shown_is_what_the_methods_compute():
    names: dict[str, Any] = {}
    [shown] = [block for block in RULE if "half = " in block]
    exec(compile(shown, "rule.md", "exec"), names)
    params = {"kernel": jnp.ones((6, 6))}
    objective = Objective(lambda params, batch, key: params)

    def types(algorithm):
        run = engine.make_round(algorithm, objective, 1, plans.loop)
        state = engine.init(algorithm, params, 1)
        rest = jnp.arange(1), jnp.ones((1, 1)), jnp.ones(1), jax.random.key(0)
        return [
            product.invars[0].aval.dtype
            for product in products(jax.make_jaxpr(run)(state, *rest).jaxpr, "tpu")
        ]

    assert types(muloco()) == 15 * [jnp.float32]
    assert types(names["half"]).count(jnp.bfloat16) == 10
    assert types(names["short"]) == 10 * [jnp.float32]


def test_the_files_of_the_map_exist():
    design = (DOCS / "design.md").read_text()
    section = design[design.index("## Folders") : design.index("## Verification")]
    names = re.findall(r"`([\w/]+(?:\.py|/))`", section)
    assert len(names) > 10
    for name in names:
        places = (ROOT / name, ROOT / "fedjax_muon" / name)
        assert any(place.exists() for place in places), name

"""Benchmarks: workloads, operations, rows, tables, figures; sizes of packages."""

import functools
import io
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import convolutions, figure, library, table, turns, workloads
from benchmarks.peers import handwritten
from benchmarks.workloads import WORKLOADS
from tests.support.packages import needs

pytestmark = pytest.mark.slow
torch = needs("torch")
torch_nets = needs("benchmarks.peers.torch_nets")
torch_loop = needs("benchmarks.peers.torch_loop")
torch_tokens = needs("benchmarks.peers.torch_tokens")
torch_vmap = needs("benchmarks.peers.torch_vmap")
gpt_step = needs("benchmarks.gpt_step")

ROOT = Path(__file__).parents[2]
FIRST = {"first_call_seconds", "repeats", "wall_seconds", "wall_seconds_min"}
FIELDS = FIRST | {"walls", "cpu_seconds", "cpu_seconds_min", "load"}


@functools.cache
def weights_of(name: str) -> dict[str, np.ndarray]:
    return library.first_weights(WORKLOADS[name])


@pytest.mark.parametrize(
    ("name", "parameters", "examples"),
    [
        # 784 x 200 + 200, 200 x 200 + 200, 200 x 10 + 10
        ("w2", 199_210, 60_000),
        ("w1", 1_199_882, 60_000),
        # 52 classes more, of 128 weights and a bias
        ("femnist", 1_199_882 + 52 * 129, 671_585),
        # 9 x 3 x 32 + 32, 9 x 32 x 64 + 64, 14 x 14 x 64 x 128 + 128, 1290
        ("cifar10", 896 + 18_496 + 1_605_760 + 1_290, 50_000),
        # as published for 10 classes, and 90 classes more
        ("cifar100_resnet18", 11_173_962 + 90 * 513, 50_000),
        ("cifar100_vit_tiny", 5_362_762 + 90 * 193, 50_000),
    ],
)
def test_works_have_the_published_sizes(name, parameters, examples):
    workload = WORKLOADS[name]
    assert sum(w.size for w in weights_of(name).values()) == parameters
    sizes = workloads.sizes_of(workload)
    assert len(sizes) == workload.clients
    assert sizes.sum() == pytest.approx(examples, rel=0.005)
    assert (sizes.std() > 0) == workload.uneven
    assert sizes.min() >= 1


NETWORKS = {name: {} for name in ("w2", "cifar10", "cifar100_vit_tiny", "rnn")}
NETWORKS["cifar100_resnet18"] = {"arguments": (100, 32, (32, 64))}  # half as deep


@pytest.mark.parametrize(("name", "changed"), NETWORKS.items())
def test_torch_networks_are_those_of_the_works(name, changed):
    workload = WORKLOADS[name]._replace(**changed)
    weights = library.first_weights(workload)
    if workload.tokens:  # a table drawn for many ids is small
        weights["Embed_0/embedding"] *= 50
    x = workloads.arrays_of(workload._replace(clients=1, examples=2))[0]
    if workload.tokens:  # texts end in padding
        x = np.pad(x, [(0, 0), (0, 5)])
    ours = library.model_of(workload).apply({"params": library.nested(weights)}, x)
    net = torch_nets.network(workload, weights)
    channels_first = x if workload.tokens else x.transpose(0, 3, 1, 2).copy()
    with torch.no_grad():
        theirs = net(torch.from_numpy(channels_first))
    assert np.abs(ours).max() > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)


FULL = {"clients": 1, "cohort": 1, "steps": 3, "batch": 600}


def test_contenders_agree_where_nothing_is_random(tmp_path):
    # one client whose batch is all its data: all contenders compute the same round
    workload = WORKLOADS["w2"]._replace(**FULL)
    weights = library.first_weights(workload)

    def loss(run_rounds, **how):
        answers = io.StringIO()
        own = turns.Turns(io.StringIO("round\n" * 2), answers)
        run_rounds(workload, weights, own, **how)
        *rounds, last = map(json.loads, answers.getvalue().splitlines())
        assert len(rounds) == 2
        return last["losses"][0]

    peer = {"cores": 1, "rounds": 2}
    own = loss(library.run, algorithms=["fedavg"], devices=1)
    for by_peer in (handwritten.run, torch_loop.run, torch_vmap.run):
        assert loss(by_peer, **peer) == pytest.approx(own, abs=1e-4)
    # the same, in processes of their own and by the command
    figure_path, output = tmp_path / "dots.png", tmp_path / "rows.jsonl"
    words = [sys.executable, "-m", "benchmarks", "w2", "--repeats", "1"]
    words += [part for size, n in FULL.items() for part in (f"--{size}", str(n))]
    words += ["--algorithms", "fedavg", "--peers", "none"]
    words += ["--also", sys.executable]
    words += ["--output", str(output), "--figure", str(figure_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    head, *rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"cpu", "jax", "command", "load", "peers"} <= head.keys()
    for row in rows:
        assert row.keys() == FIELDS | {
            *("workload", "contender", "algorithm", "whole", "devices"),
            *("clients", "cohort", "steps", "batch", "peak_mb", "loss", "parameters"),
        }
        assert row["whole"] is False
        assert row["loss"] == pytest.approx(own, abs=1e-3)
    contenders = {row["contender"] for row in rows}
    also = f"{figure.OURS}, jax {head['also_jax']}"
    assert contenders == {figure.OURS, also}
    kept = [json.loads(line) for line in output.read_text().splitlines()]
    assert kept == [head, *rows]
    assert figure_path.read_bytes()[:4] == b"\x89PNG"


def test_a_gpt_takes_the_same_steps_in_pytorch(monkeypatch):
    shapes = jax.eval_shape(gpt_step.MODEL.init, jax.random.key(0), np.zeros((1, 1)))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 842_496
    small = gpt_step.MODEL.clone(context=16, width=16, depth=1)
    monkeypatch.setattr(gpt_step, "MODEL", small)
    own, *others = rows = list(gpt_step.rows(1))
    names = ["fedjax_muon", "PyTorch, fused", "PyTorch, plain"]
    assert [row["contender"] for row in rows] == names
    for row in others:
        assert row["loss"] == pytest.approx(own["loss"], abs=1e-3)
    assert own["loss"] < np.log(256) - 0.1
    assert own["tokens_per_second"] > 0
    *_, line = table.tokens(rows)
    assert line.count("|") == 5
    # attention to later tokens has another loss from the same weights
    sees_all = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setitem(torch_tokens.ATTENTION, "plain", sees_all)
    with pytest.raises(ValueError, match="the same loss at first"):
        next(gpt_step.rows(1))


def test_the_kept_times_of_convolutions_name_the_chosen_forms():
    kept = table.read([ROOT / "results" / "benchmarks" / "convolutions_cpu.jsonl"])
    for version in ("0.10.2", "0.11.2"):
        found = {
            r["case"]: r["form"] for r in kept if r["jax"] == version and r["chosen"]
        }
        assert found == {str(c): convolutions.chosen_of(c) for c in convolutions.CASES}


def test_rounds_are_compared_with_those_of_pytorch_in_turn():
    """A machine that slows down slows all contenders; their ratios stay."""
    slowing = np.array([1.0, 2.0, 4.0])
    about = {"workload": "w2", "algorithm": "fedavg", "whole": True}
    row = lambda name, walls: about | {"contender": name, "walls": list(walls)}
    also = f"{table.OURS}, jax 0.10.2"
    rows = [row(table.BASE, slowing), row(table.OURS, 0.5 * slowing)]
    rows += [row(also, 0.5 * slowing * np.array([0.8, 1.0, 1.25])), row("pfl", slowing)]
    *_, line = table.ratios(rows)
    _, _, alone, other, _ = line.split("|")
    assert alone.strip() == "0.50 (0.50 to 0.50)"
    # log(1.25) is 0.2231, the deviation of these three; t(0.975, 2) is 4.303
    low, high = 0.5 * np.exp(np.array([-1, 1]) * 4.303 * 0.2231 / np.sqrt(3))
    assert other.strip() == f"0.50 ({low:.2f} to {high:.2f})"
    assert table.ratios(rows[1:]) == []  # without PyTorch

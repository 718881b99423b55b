"""The written Flower app without Flower: its files, its nodes and its results."""

import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.cli import flower_app
from fedjax_muon.deploy import in_process
from fedjax_muon.engine import plans
from fedjax_muon.runs import metrics_csv
from tests.deploy.deployed_run import (
    RUN,
    assert_simulated,
    job_of,
    nodes_from,
    without,
    written,
)
from tests.support.command import refused, run
from tests.support.error_lines import one_line

SMALL = ("fedavg", "--problem", "digits:clients=3,model=mlp:8")


@pytest.fixture
def app(tmp_path):
    """The directory of an app, and what its nodes have."""
    return tmp_path / "app", written(tmp_path / "app")


def test_the_command_writes_the_template_and_the_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("deploy", 'my "🌼"', *SMALL, "--largest-client", "4096")
    said = capsys.readouterr().out
    assert "flwr run 'my \"🌼\"' --stream" in said
    assert "--federation-config num-supernodes=3" in said
    place = tmp_path / 'my "🌼"'
    project = tomllib.loads((place / "pyproject.toml").read_text())["tool"]["flwr"]
    config = {"output": str(place), "deadline": 600.0, "patience": 60.0, "own-code": ""}
    assert project["app"]["config"] == config
    for component in project["app"]["components"].values():
        module, _, name = component.partition(":")
        source = (place / f"{module}.py").read_text()
        assert name in compile(source, module, "exec").co_names
    assert all((place / name[1:]).is_file() for name in project["app"]["fab-include"])
    text = (place / "experiment.py").read_text()
    exec(compile(text, "experiment.py", "exec"), made := {})  # is Python, too
    assert made["method"].recipe.arguments["lr"] == 0.1
    ours, facts = flower_app.read_app(place)
    assert ours.method.function is fm.fedavg
    assert ours.problem.kwargs["model"].kwargs == {"hidden": (8,)}
    assert facts.sizes["max_client_size"] == 4096
    assert "is already used" in refused(capsys, "deploy", place, *SMALL)
    (place / flower_app.FACTS).write_text("{}")
    with pytest.raises(ValueError, match="the same version of fedjax_muon"):
        flower_app.read_app(place)


def test_lost_clients_are_recorded_and_rows_after_the_checkpoint_replaced(app):
    """Here of nodes in this process, which have the numbers of `train`."""
    (place, configs), (job, problem, facts) = app, job_of(RUN)
    send = without(1, nodes_from(place, configs), after=3)
    flower_app.train_with(job, facts, problem, send, place)
    rows = metrics_csv.read(place / "metrics.csv")
    assert rows["round"].tolist() == [0, 1, 2, 3, 4]
    # exchanges: the prologue, then one in every round
    assert rows["missing"].tolist() == [0, 0, 0, 1, 1]
    lost = [f"{round},1,1,no answer" for round in (2, 3)]
    assert (place / "missing.csv").read_text().splitlines()[1:] == lost
    assert_simulated(RUN, rows, rounds=2)
    flower_app.train_with(job, facts, problem, send, place)  # it has ended
    again = metrics_csv.read(place / "metrics.csv")
    for name in ("round", "test_loss"):
        np.testing.assert_array_equal(rows[name], again[name])


@pytest.mark.parametrize("name", ["fedmuon", "fedavg"])
def test_a_method_without_arguments_is_deployed_as_it_is_trained(name, tmp_path):
    place, words = tmp_path / "app", [name, *RUN[1:]]
    configs, (_, problem, _) = written(place, words), job_of(words)
    ours, facts = flower_app.read_app(place)  # as it is written
    send = in_process(nodes_from(place, configs))
    flower_app.train_with(ours, facts, problem, send, place)
    rows = metrics_csv.read(place / "metrics.csv")
    how = {"rounds": 4, "evaluate_every": 1, "progress": False, **ours.how}
    result = fm.train(getattr(fm, name), problem, plan=plans.mapped, **how)
    trained = [record["test_loss"] for record in result.records]
    assert rows["test_loss"].tolist() == trained


def test_damaged_rows_do_not_stop_a_later_start(tmp_path):
    path = tmp_path / "missing.csv"
    good = [b"round,exchange,client,reason", b"-1,0,2,no answer", b"0,1,2,late"]
    long, later = b"0,1,1," + 200_000 * b"x", b"3,1,1,no answer"
    bad = [long, b"0,1", b"one,1,1,late", b"0,1,1,late,0", b"\xff\x00,1,1,x", later]
    path.write_bytes(b"\n".join((good[0], *bad, *good[1:])) + b"\n")
    flower_app._keep_before(path, 3)
    assert path.read_bytes().split() == b" ".join(good).split()
    path.write_bytes(long + b"\n" + good[1])  # no row is left
    flower_app._keep_before(path, 3)
    assert not path.exists()


def test_arrivals_are_recorded_once_whenever_the_server_is_killed(
    tmp_path, monkeypatch
):
    """After it has saved a checkpoint, and before it writes the rows of that round."""
    late = {"3": "buffered:concurrency=2,buffer=1", "4": "2"}  # cohort, rounds
    # rounded alike in both programs on all CPUs, unlike Newton-Schulz
    late["fedmuon:lr=0.02"] = "fedmuon:lr=0.02,polar=exact"
    words = [late.get(word, word) for word in RUN]
    job, problem, facts = job_of(words)
    place = tmp_path / "app"
    configs = written(place, words)
    arrivals, add = place / flower_app.ARRIVALS, flower_app._Record.add
    arrivals.write_text("round,client,start,seconds\n-1,0,-1,0.5\n")  # checkpoints gone
    inner = in_process(nodes_from(place, configs))

    def send(requests, deadline):  # client 1 is silent in the prologue
        there = {i: r for i, r in requests.items() if i != 1 or len(requests) == 1}
        return inner(there, deadline)

    def killed(record, progress, missing):
        if dying.pop(progress.state.round, False):
            raise InterruptedError
        add(record, progress, missing)

    dying = {0: True, 1: True}
    monkeypatch.setattr(flower_app._Record, "add", killed)
    monkeypatch.setattr(flower_app, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    for _ in range(len(dying)):
        with pytest.raises(InterruptedError):
            flower_app.train_with(job, facts, problem, send, place)
    flower_app.train_with(job, facts, problem, send, place)
    rows = metrics_csv.read(arrivals)
    assert rows["round"].tolist() == [-1, 0, 1]
    assert rows["client"][0] == 1
    again = fm.replayed(fm.buffered(2, 1), arrivals)
    found = metrics_csv.read(place / "metrics.csv")
    assert_simulated(words, found, rounds=2, cohort=again)


def test_without_a_file_a_client_has_its_part_of_train(app, tmp_path):
    place, configs = app
    server = {"output": str(tmp_path), "own-code": ""}
    here = flower_app.node_of({"partition-id": 1}, server, place)
    there = nodes_from(place, configs)[1]
    np.testing.assert_array_equal(here._clients.x, there._clients.x)
    assert (tmp_path / "states1").is_dir()


def test_a_node_without_what_it_needs_is_refused(app):
    place, (config, *_) = app
    own = Path(config["data"])
    for client, message in ((None, "'partition-id=0'"), (3, "clients 0 to 2, got 3")):
        with pytest.raises(ValueError, match=message):
            flower_app.node_of(config | {"partition-id": client}, {}, place)
    for arrays, message in (
        ({"x": np.zeros((3, 5), "f4")}, r"float32 of shape \[n, 8, 8, 1\]"),
        ({"x": np.array([{}])}, "expected a NumPy .npz archive of plain arrays"),
        ({"z": np.zeros(3)}, "expected the arrays x, y, found no x"),
    ):
        np.savez(own, y=np.zeros(3, "i4"), **arrays)
        with pytest.raises(ValueError, match=message):
            flower_app.load_examples(own, job_of(RUN)[-1])


def test_only_the_server_needs_its_data(tmp_path, monkeypatch):
    """Here a file, by a path relative to where the app was written."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 3},{i},{i % 2}" for i in range(30)]
    own, place = tmp_path / "own.csv", tmp_path / "app"
    own.write_text("\n".join(["ward,age,label", *rows]))
    run("deploy", "app", "fedavg", "--problem", "own.csv:owner=ward")
    np.savez(mine := tmp_path / "mine.npz", x=np.ones((4, 1), "f4"), y=[0, 1, 0, 1])
    node = lambda **has: flower_app.node_of({"partition-id": 2, **has}, server, place)
    server = {"output": str(tmp_path)}
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    assert node().client == 2
    own.unlink()
    sizes = node(data=mine).shared.setup
    assert (sizes.num_clients, sizes.cohort.size) == (3, 3)
    with pytest.raises(OSError, match=r"own\.csv"):
        node()


def test_sites_are_named_and_have_tables_of_their_own(tmp_path, monkeypatch):
    """Encoded and standardized as the table that the app was written with."""
    monkeypatch.chdir(tmp_path)
    wards = ["south", "north", "east"]
    rows = [
        f"{wards[i % 3]},{'' if i % 7 == 1 else i},{'FM'[i % 2]},{'yn'[i // 3 % 2]}"
        for i in range(60)
    ]
    Path("all.csv").write_text("\n".join(["ward,age,sex,ill", *rows]))
    run("split", "all.csv", "sites", "--owner", "ward")
    how = "label=ill,owner=ward,categories=one_hot,missing=mean"
    words = ("--problem", f"all.csv:{how}", "--largest-client", 64)
    run("deploy", "app", "fedavg", *words)
    mixed = {"categories": "one_hot", "missing": "mean"}
    whole = fm.data.from_csv("all.csv", label="ill", owner="ward", **mixed)
    Path("all.csv").unlink()
    parts = fm.partition.by_owner(whole.owners)
    rounded = lambda x: {tuple(row) for row in np.asarray(x).round(5).tolist()}
    for client, ward in enumerate(sorted(wards)):
        config = {"site": ward, "data": f"sites/{ward}.csv"}
        node = flower_app.node_of(config, {}, tmp_path / "app")
        assert node.client == client
        assert rounded(whole.x_train[parts[client]]) <= rounded(node._clients.x)
        wanted = [row.endswith("y") for row in rows if row.startswith(ward)]
        np.testing.assert_array_equal(np.asarray(node._clients.y) == 1, wanted)
    node = lambda **how: flower_app.node_of(how, {}, tmp_path / "app")
    with one_line("no site 'nord'; the app's sites are east, north, south"):
        node(site="nord", data="sites/north.csv")
    table = Path("sites/north.csv")
    text = table.read_text()
    for old, new, said in (
        ("age", "AGE", "lacks the columns age; add them"),
        (",y", ",maybe", "line 2: the label 'maybe' is not one of the classes n, y"),
        ("north,4,", "north,old,", "'old' in column 'age' is not a number"),
    ):
        table.write_text(text.replace(old, new))
        with one_line(said, table):
            node(site="north", data=table)


def test_a_server_without_data_has_the_bits_of_one_with_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{'ns'[i % 2]},{'' if i % 7 == 1 else i},{'yn'[i // 3 % 2]}" for i in range(60)
    ]
    Path("all.csv").write_text("\n".join(["ward,age,ill", *rows]))
    run("split", "all.csv", "sites", "--owner", "ward")
    table = "all.csv:label=ill,owner=ward,missing=mean"
    run("describe", table, "--output", "words.json")
    usual = ("fedmuon", "--rounds", 2, "--evaluate-every", 1, "--largest-client", 32)
    run("deploy", "with", *usual, "--problem", f"{table},model=mlp:8")
    named = ("--words", "words.json", "--sites", "n,s")
    run("deploy", "without", *usual, *named, "--problem", "classification:model=mlp:8")
    Path("all.csv").rename("all_of_them.csv")
    ended, add = {}, flower_app._Record.add

    def noted(record, progress, missing):
        ended[record.metrics.parent.name] = progress.params
        add(record, progress, missing)

    monkeypatch.setattr(flower_app._Record, "add", noted)
    for name in ("without", "with"):
        place = tmp_path / name
        ours, facts = flower_app.read_app(place)
        if facts.tested:
            Path("all_of_them.csv").rename("all.csv")
            problem = flower_app._problem(ours.problem)
        else:
            problem = flower_app.problem_of_nodes(ours.problem, facts)
        configs = [
            {"site": site, "data": f"sites/{site}.csv", "states": f"{name}_{site}"}
            for site in facts.sites
        ]
        send = in_process(nodes_from(place, configs))
        flower_app.train_with(ours, facts, problem, send, place)
    for a, b in zip(*map(jax.tree.leaves, ended.values()), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    first, *_ = (tmp_path / "without" / "metrics.csv").read_text().splitlines()
    assert first == "round,missing,seconds"
    with one_line("this app has no examples to simulate clients with"):
        flower_app.node_of({"partition-id": 0}, {"output": "x"}, tmp_path / "without")


def test_words_of_clients_need_sites_and_a_bound(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("describe", "digits")
    with pytest.raises(SystemExit):
        run("describe", "digits")
    assert "words.json exists already" in capsys.readouterr().err
    named, bound = "--words words.json --sites a,b", "--largest-client 9"
    Path("cut.json").write_text(Path("words.json").read_text()[:60])
    for words, said in (
        ("--words words.json", "needs --sites, the name of each site once, got []"),
        ("--words words.json --sites a,a", "each site once, got ['a', 'a']"),
        ("--sites a,b", "sites is for --words; with data, give it an owner"),
        (named, "give --largest-client, an upper bound"),
        (f"{named} {bound} --problem digits", "--sites decide dataset; leave it out"),
        (f"{named} {bound} --problem classification:clients=3", "decide clients"),
        (f"--words no.json --sites a,b {bound}", "no.json"),
        (f"--words cut.json --sites a,b {bound}", "let a client run describe again"),
    ):
        assert said in refused(capsys, "deploy", "app", "fedavg", *words.split())
    assert not Path("app").exists()


def test_a_table_that_cannot_be_divided_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("ward,age\nnorth,1\n../b,2\n")
    for words, said in (
        (
            ("a.csv", "sites", "--owner", "ward"),
            "line 3: expected 2 columns and a name",
        ),
        (("a.csv", "sites", "--owner", "site"), "there is no column 'site' for owner"),
        (("b.csv", "sites", "--owner", "ward"), "there is no file b.csv"),
    ):
        with pytest.raises(SystemExit):
            run("split", *words)
        assert said in capsys.readouterr().err
    assert not Path("sites").exists()
    Path("a.csv").write_text("ward,age\nnorth,1\neast,2\n")
    run("split", "a.csv", "sites", "--owner", "ward")
    Path("sites/east.csv").unlink()
    with pytest.raises(SystemExit):
        run("split", "a.csv", "sites", "--owner", "ward")
    assert "sites has north.csv already; choose another" in capsys.readouterr().err
    assert not Path("sites/east.csv").exists()


OWN_NET = """
from fedjax_muon import models
def gated(dataset):
    return models.MLP(len(dataset.classes), (4,))
"""


def test_a_node_imports_only_the_modules_that_its_user_names(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(OWN_NET)
    monkeypatch.chdir(tmp_path)
    words = ("fedavg", "--problem", "digits:clients=3,model=own_net:gated")
    run("deploy", place := tmp_path / "app", *words)
    project = tomllib.loads((place / "pyproject.toml").read_text())["tool"]["flwr"]
    assert project["app"]["config"]["own-code"] == "own_net"
    np.savez("mine.npz", x=np.zeros((4, 8, 8, 1), "f4"), y=np.zeros(4, "i4"))
    config = {"partition-id": 0, "data": "mine.npz"}
    flower_app.node_of({**config, "own-code": "json,own_net"}, {}, place)
    node = lambda own: flower_app.node_of({**config, "own-code": own}, {}, place)
    why = (
        'own_net:gated is imported only if this SuperNode has --node-config own-code="'
    )
    with pytest.raises(ValueError, match=f'{why}own_net"'):
        node("own")
    path = place / "experiment.py"  # whatever the server says of its modules
    whole = path.read_text()
    for text, said in HOSTILE.items():
        path.write_text(text.replace("WHOLE", whole))
        with pytest.raises(ValueError, match=said):
            node("own_net")


HOSTILE = {  # what a server may write, and what its nodes say
    "from os import abort\nWHOLE": "server's os:abort is imported only if",
    "import os\nWHOLE": "line 1 has more than imports, calls, and plain values",
    "from fedjax_muon.files import write\nWHOLE": "write is not a function of the",
    "from functools import reduce\nWHOLE": "reduce is not a function of the",
    "WHOLE\nmethod = __import__('os')": "has more than imports, calls, and plain",
    "WHOLE\nmethod = fedavg.__globals__": "has more than imports, calls, and plain",
    "WHOLE\nmethod = [x for x in '1']": "has more than imports, calls, and plain",
    "WHOLE\nmethod = 3": "method and problem must be calls",
    "WHOLE\nrounds = 'many'": "method and problem must be calls, and the others must",
    "method = 3": "it must say method, problem, settings",
    "(": "expected Python, found",
}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fedavg --devices 2", "deploy does not support devices, since clients have"),
        ("fedavg --split-examples", "deploy does not support split_examples, since"),
        ("fedavg --local-epochs 1", "does not support local_epochs, since nodes"),
        ("fedavg --problem digits:client_tests=true", "since the server tests on its"),
        ("fedavg --privacy x", "privacy, since no ledger would know of its rounds"),
        ("fedavg --plan vmapped", "support plan, since nodes train one by one"),
        ("fedavg --cohort replayed:buffered(2,1),a.csv", "takes messages as they come"),
        ("fedavg --cohort buffered:9,2", "concurrency=9 of 3 clients"),
        ("fedavg --cohort sampled:2,dropout=0.1", "without a clock and dropout"),
        ("fedavg --dropout 0.1", "write --cohort sampled:8,dropout=0.1"),
        ("fedavg --largest-client 0", "largest_client must be at least 1, got 0"),
        ("fedavg --ledger a.json", "unknown option --ledger"),
        ("dsgd", "dsgd has no server"),
        ("fedavg fedmuon", "deploy takes directory, method, got 'fedmuon' too"),
    ],
)
def test_what_a_deployment_can_not_have_is_refused(capsys, tmp_path, words, said):
    words = ["deploy", tmp_path / "app", *words.split()]
    words += [] if "--problem" in words else ["--problem", "digits:clients=3"]
    assert said in refused(capsys, *words)
    assert not (tmp_path / "app").exists()

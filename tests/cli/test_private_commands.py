"""Private runs as a user meets them: `train` and `compare` with `--privacy`."""

import csv
import json
import shutil

import jax
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.runs import private, record
from tests.support.command import refused, run

AGENTS = "dpmixsgd --rounds 2 --batch-size 20 --evaluate-every 1"
AGENTS += " --problem auc:clients=5,positives=none,model=linear,graph=ring"
CLIENTS = "--problem digits:clients=6,model=mlp:4 --cohort 3 --rounds 2"
OF_CLIENTS = "ClientPrivacy:epsilon=8,delta=0.01"
PAID = ("train", *AGENTS.split(), "--privacy", "ExamplePrivacy:epsilon=4")
IGNORED = "ignore:messages have params", "ignore:the noise in the sum"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(*IGNORED)]


@pytest.fixture
def paid(tmp_path):
    """Options of a run in a directory of its own, charged to a ledger beside it."""
    return ["--ledger", tmp_path / "ledger.json", "--directory", tmp_path / "run"]


def rows_of(cell):
    with (cell / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def entries(place):
    return json.loads((place / "ledger.json").read_text())["entries"]


def left(place):
    """The names of files beside the ledger of runs that are finished."""
    return {path.name for path in place.glob("ledger.secret/**/*") if path.is_file()}


def test_a_comparison_over_epsilons(paid, tmp_path, capsys):
    promise = "ExamplePrivacy:epsilon=[1,8]"
    run("compare", *AGENTS.split(), "--seeds", 3, "--privacy", promise, *paid)
    place = tmp_path / "run"
    with (place / "summary.csv").open() as file:
        labels = [row["method"] for row in csv.DictReader(file)]
    assert labels == [f"DPMixSGD (clipped), epsilon {e}" for e in (1, 8)]
    cells = [next(place.glob(f"*/epsilon{e}/seed3")) for e in (1, 8)]
    public = "bytes_down bytes_up test_accuracy test_auc test_loss"
    assert {n for n in rows_of(cells[0])[0] if "_" in n} == set(public.split())
    last = [float(rows_of(cell)[-1]["consensus"]) for cell in cells]
    assert 0 < 3 * last[1] < last[0]  # noise drives agents apart
    # runs of one seed share no noise
    assert len({rows_of(cell)[0]["test_loss"] for cell in cells}) == 2
    text = " ".join((place / "privacy.txt").read_text().split())
    assert text.count("-differential privacy for one example of one agent") == 2
    assert "all 2 runs of this job and 0 others that the ledger has seen" in text
    assert len(entries(tmp_path)) == 2
    # what is left has no secrets
    assert left(tmp_path) == {"identity.json"}
    state = fm.load_run(cells[0]).state
    secret = [
        leaf
        for path, leaf in jax.tree.leaves_with_path(state)
        if not jax.tree_util.keystr(path, simple=True, separator=".").startswith(
            tuple(name[1:] for name in private.PUBLIC)
        )
    ]
    assert secret
    numbers = [leaf for leaf in secret if not isinstance(leaf, int)]
    keys = jax.dtypes.prng_key
    plain = [
        jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, keys) else x
        for x in numbers
    ]
    assert not any(map(np.any, plain))


def test_a_federated_method_protects_its_clients(paid, tmp_path, capsys):
    words = ("train", "scaffold", *CLIENTS.split(), "--privacy")
    run(*words, OF_CLIENTS, *paid)
    assert "(8, 0.01)-differential privacy for one client" in capsys.readouterr().err
    assert "train_loss" not in rows_of(tmp_path / "run")[-1]
    run(*words, OF_CLIENTS, *paid)  # is finished, and paid
    assert len(entries(tmp_path)) == 1
    more = "publish_training_metrics=true,insecure_fixed_noise=true"
    paid[-1] = tmp_path / "other"
    run(*words, f"{OF_CLIENTS},{more}", *paid)
    assert "train_loss" in rows_of(tmp_path / "other")[-1]
    assert "NO differential privacy" in (tmp_path / "other/privacy.txt").read_text()


def test_a_run_without_its_secret_state_draws_no_other_noise(paid, tmp_path, capsys):
    run(*PAID, *paid)
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(SystemExit) as stop:
        run(*PAID, *paid)
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "the secret state of" in said
    assert "start again in another directory, which the ledger charges again" in said


def test_a_run_that_ends_before_it_is_published_is_published_later(
    paid, tmp_path, monkeypatch, capsys
):
    def interrupted(self, state):
        raise KeyboardInterrupt

    monkeypatch.setattr(record.Recorder, "publish", interrupted)
    with pytest.raises(SystemExit) as stop:
        run(*PAID, *paid)
    assert stop.value.code == 130
    monkeypatch.undo()
    assert len(left(tmp_path)) > 1
    run(*PAID, *paid)
    assert fm.load_run(tmp_path / "run").params
    assert left(tmp_path) == {"identity.json"}


def test_without_a_home_a_ledger_is_named(paid, tmp_path, capsys, monkeypatch):
    """As for a user of a container who has no entry."""

    def unknown(*names):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("platformdirs.user_data_path", unknown)
    words = ["train", "fedavg", *CLIENTS.split(), "--privacy", OF_CLIENTS]
    said = refused(capsys, *words, "--directory", tmp_path / "run")
    assert said.startswith("there is no home for the ledger (could not determine")
    assert said.endswith("; give --ledger FILE")
    assert not (tmp_path / "run").exists()
    run(*words, *paid)
    capsys.readouterr()
    monkeypatch.setattr("pathlib.Path.expanduser", unknown)
    said = refused(capsys, *words, "--directory", "~/a")
    assert said.endswith("home directory; name the place with its whole path")


def test_a_directory_names_no_ledger_of_others(paid, tmp_path, capsys):
    run(*PAID, *paid)
    capsys.readouterr()
    charged = tmp_path / "run/ledger.json"
    about = json.loads(charged.read_text())
    charged.write_text(json.dumps({**about, "ledger": str(tmp_path / "b/other.json")}))
    assert "other.json, not to" in refused(capsys, *PAID, *paid)
    assert not (tmp_path / "b").exists()


def test_a_damaged_ledger_is_refused(paid, tmp_path, capsys):
    (tmp_path / "ledger.json").write_text("{}")
    said = refused(capsys, *PAID, *paid)
    assert "is not a privacy ledger" in said
    assert not (tmp_path / "run/metrics.csv").exists()

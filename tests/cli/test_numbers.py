"""The last row of small runs, frozen: no word of a command is lost on the way."""

import pytest
from cases import slow_but
from command import refused, run

from fedjax_muon.runs import metrics_csv

DATA = "--clients 6 --model mlp:hidden=8 --rounds 4 --evaluate-every 4"
WORK = f"{DATA} --batch-size 8"
STEPS = f"{WORK} --local-steps 2"
ROUNDS = f"{STEPS} --cohort 3"
PRIVATE = "--delta 0.01 --insecure-fixed-noise --ledger ledger.json"
LATE = "--clock lognormal:1.0,0.5 --cohort buffered:4,2"
DROPS = "--cohort sampled:3 --dropout 0.3"
TIMED = "--cohort timed --size 3 --clock lognormal:1.0 --deadline 3"
SHARDS = "--divide shards --shards-per-client 2"
# words, and the test loss and the bytes that were sent up
CASES = {
    f"fedavg:lr=0.2 {STEPS} {DROPS} --seed 5": (
        2.7915325,
        9760,
    ),
    f"fedmuon {STEPS} {LATE}": (
        2.171734571456909,
        53680,
    ),
    "dsgd --rounds 10 --evaluate-every 10": (1.6454375, 11840400),
    "--problem auc --rounds 10 --evaluate-every 10": (0.41039938, 4017280),
    f"fedavg {STEPS} {PRIVATE} --epsilon 8": (2.0852058, 58560),
    f"dpmixsgd --rounds 4 {PRIVATE} --delta 1e-5 --epsilon 8": (
        0.7005805373191833,
        31200,
    ),
    f"fedavg {STEPS} {TIMED}": (1.9378585, 26840),
    f"scaffold {ROUNDS} --client-tests": (2.2088931, 58560),
    f"fedavg {ROUNDS} --client-tests --with keep_own:head": (
        1.9727437496185303,
        24960,
    ),
    f"fedmuon {ROUNDS} --with compress:top_k:0.05 --feedback 1": (
        2.2160799503326416,
        7680,
    ),
    f"fednova {WORK} --cohort 3 --local-epochs 1,2": (1.2916828, 29328),
    f"fedmuon:lr=cosine:0.03 {ROUNDS}": (2.0538654, 73200),
    f"fedavg {ROUNDS} {SHARDS} --dtype bfloat16": (
        1.9870007038116455,
        29280,
    ),
    f"fedavg {ROUNDS} --plan vmapped --weighting examples": (1.8972837, 29280),
}


# what some of them say, in the last lines
SAID = {
    f"fedmuon {STEPS} {LATE}": "after 4 rounds and ",
    f"fedavg {ROUNDS} --client-tests --with keep_own:head": (
        "mean accuracy of clients with their own parameters 0."
    ),
}


@pytest.mark.parametrize(("words", "known"), slow_but(3, [*CASES.items()]))
def test_the_numbers_of_a_run_stay(words, known, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("train", *words.split(), "--directory", "run")
    columns = metrics_csv.read(tmp_path / "run/metrics.csv")
    found = [columns[name][-1] for name in ("test_loss", "bytes_up")]
    assert found == pytest.approx(known, rel=1e-6)
    said = " ".join(capsys.readouterr().out.split())
    assert SAID.get(words, "metrics and figure in run") in said


def test_owners_of_a_table_are_the_clients(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{i},note,{'south' if i % 3 else 'north'},{'ab'[i % 2]}" for i in range(40)
    ]
    text = "\n".join(["age,note,bank,risk", *rows])
    (tmp_path / "table.csv").write_text(text)
    words = "--dataset table.csv --label risk --owner bank --exclude note"
    run("train", "fedavg", *words.split(), "--rounds", 1, "--directory", "run")
    first, *_ = capsys.readouterr().out.splitlines()
    expected = (
        "40 examples (32 to train, 8 to test), 1 feature, 2 classes: a, b; 2 clien"
    )
    assert first.startswith(expected)
    (tmp_path / "table.csv").write_text(text.replace("39,", "38,"))
    assert "its data differ; choose another" in refused(capsys, "resume", "run")

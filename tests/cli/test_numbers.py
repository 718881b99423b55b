"""The last row of small runs, frozen: no word of a command is lost on the way."""

import pytest

from fedjax_muon.runs import metrics_csv
from tests.support.cases import slow_but
from tests.support.command import refused, run

ROUNDS = "--rounds 4 --evaluate-every 4 --batch-size 8"
STEPS = f"{ROUNDS} --local-steps 2"
DATA = "--problem digits:clients=6,model=mlp:8"
DIGITS = DATA.replace("mlp:8", "mlp(8)")  # more arguments follow
FIXED = "insecure_fixed_noise=true"
LATE = "--cohort buffered:4,2,lognormal(1.0,0.5)"
TIMED = "--cohort timed:3,lognormal:1.0,deadline=3"
# words, and the test loss and the bytes that were sent up
CASES = {
    f"fedavg:lr=0.2 {DATA} {STEPS} --cohort sampled:3,dropout=0.3 --seed 5": (
        2.7915325,
        9760,
    ),
    f"fedmuon:lr=0.01 {DATA} {STEPS} {LATE}": (2.171734571456909, 53680),
    "dsgd --rounds 10 --evaluate-every 10": (1.6454375, 11840400),
    "fed_nsgda_m --rounds 10 --evaluate-every 10": (0.41039938, 4017280),
    f"fedavg {DATA} {STEPS} --ledger ledger.json "
    f"--privacy ClientPrivacy:epsilon=8,delta=0.01,{FIXED}": (2.0852058, 58560),
    "dpmixsgd --rounds 4 --evaluate-every 20 --ledger ledger.json "
    f"--privacy ExamplePrivacy:epsilon=8,{FIXED}": (0.7005805373191833, 31200),
    f"fedavg {DATA} {STEPS} {TIMED}": (1.9378585, 26840),
    f"scaffold {DIGITS},client_tests=true {STEPS} --cohort 3": (2.2088931, 58560),
    f"keep_own:fedavg,head {DIGITS},client_tests=true {STEPS} --cohort 3": (
        1.9727437496185303,
        24960,
    ),
    f"compress:fedmuon,top_k:0.05,feedback=1 {DATA} {STEPS} --cohort 3": (
        2.2160799503326416,
        7680,
    ),
    f"fednova {DATA} {ROUNDS} --cohort 3 --local-epochs 1,2": (1.2916828, 29328),
    f"fedmuon:lr=cosine:0.03 {DATA} {STEPS} --cohort 3": (2.0538654, 73200),
    "fedavg --problem digits:clients=6,divide=shards(2),model=mlp(8,dtype=bfloat16) "
    f"{STEPS} --cohort 3": (1.9870007038116455, 29280),
    f"fedavg {DATA} {STEPS} --cohort 3 --plan vmapped --weighting examples": (
        1.8972837,
        29280,
    ),
}


# what some of them say, in the last lines
SAID = {
    f"fedmuon:lr=0.01 {DATA} {STEPS} {LATE}": "after 4 rounds and ",
    f"keep_own:fedavg,head {DIGITS},client_tests=true {STEPS} --cohort 3": (
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
    assert SAID.get(words, "metrics and figures in run") in said


def test_owners_of_a_table_are_the_clients(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{i},note,{'south' if i % 3 else 'north'},{'ab'[i % 2]}" for i in range(40)
    ]
    text = "\n".join(["age,note,bank,risk", *rows])
    (tmp_path / "table.csv").write_text(text)
    data = "--problem table.csv:label=risk,owner=bank,exclude=note"
    words = ("train", "fedavg", *data.split(), "--rounds", 1, "--directory", "run")
    run(*words)
    first, *_ = capsys.readouterr().err.splitlines()
    expected = (
        "40 examples (32 to train, 8 to test), 1 feature, 2 classes: a, b; 2 clien"
    )
    assert first.startswith(expected)
    (tmp_path / "table.csv").write_text(text.replace("39,", "38,"))
    assert "its data differ; choose another" in refused(capsys, *words)

"""Results are collected, kept for figures, and claims are judged by them."""

import math
from pathlib import Path

import pytest

from experiments import figures
from experiments.papers import results
from experiments.papers.claims import (
    NO,
    OPEN,
    YES,
    Claim,
    Score,
    above,
    at_edge,
    cheaper,
    costs,
    falling,
    first,
    least,
    loses_more,
    minus,
    read,
    train_loss,
    wider,
    within,
)

pytestmark = pytest.mark.slow


RESULTS = Path(__file__).parents[2] / "results"
TABLE = """setting,method,score,interval,by_seed
hard,A,73.0,0.5,
hard,B,70.0,0.5,
hard,C,69.8,0.4,
hard,D,diverged,,
easy,A,80.0,,
easy,B,79.5,0.1,
mild,A,80.0,0.5,
mild,B,79.5,0.5,
harder,A,74.0,0.5,
harder,B,68.0,0.5,
"""


def scores_of(tmp_path, table):
    path = tmp_path / "table.csv"
    path.write_text(table)
    return read(path)


@pytest.mark.parametrize(
    ("judge", "verdict", "said"),
    [
        (falling("hard", "A", "B"), YES, "hard: A 73.0 ± 0.5, B 70.0 ± 0.5"),
        (falling("hard", "B", "A"), NO, "hard: B 70.0 ± 0.5, A 73.0 ± 0.5"),
        (falling("hard", "A", "B", "C"), OPEN, "C 69.8 ± 0.4"),
        (falling("hard", "C", "B"), OPEN, "hard: C"),
        (falling("hard", "C", "D"), OPEN, "D diverged"),
        (falling("hard", "D", "C"), OPEN, "D diverged"),
        (least("hard", "C", "A"), YES, "hard: 69.8 ± 0.4, rank 1 of 2; the best "),
        (least("hard", "C", "A", "B"), OPEN, "the best other is B, 70.0 ± 0.5"),
        (least("hard", "B", "A", "C"), OPEN, "rank 2 of 3; the best other is C"),
        (least("hard", "A", "B", "C"), NO, "rank 3 of 3; the best other is C"),
        (first("hard", "B", "C", "D"), OPEN, "rank 1 of 3; the best other is C"),
        (first("hard", "A", "B", "C"), YES, "rank 1 of 3; the best other is B, 70.0"),
        (first("hard", "A"), OPEN, "rank 1 of 4; the best other is B, 70.0 ± 0.5"),
        (first("hard", "B", "A", "C"), NO, "rank 2 of 3; the best other is A"),
        (first("hard", "B", but="A"), OPEN, "rank 2 of 4; the best but A is C"),
        (first("hard", "D"), OPEN, "diverged, rank 4 of 4"),
        # a single score has no interval
        (least("easy", "B"), OPEN, "rank 1 of 2; the best other is A, 80.0"),
        (within("hard", "C", "B", 1.0), YES, "0.2 ± 0.6 points lost"),
        (within("hard", "C", "B", 0.5), OPEN, "points lost"),
        (within("hard", "C", "A", 1.0), NO, "3.2 ± 0.6"),
        (wider(("mild", "hard"), "A"), YES, "mild: 0.5 ± 0.7 over B; hard: 3.0 ± 0.7"),
        (wider(("hard", "easy"), "A"), OPEN, "hard: 3.0 ± 0.7 over B; easy: 0.5"),
        (wider(("mild", "harder"), "A"), YES, "harder: 6.0 ± 0.7 over B"),
        (wider(("harder", "mild"), "A"), NO, "harder: 6.0 ± 0.7 over B; mild: 0.5"),
        (loses_more(("mild", "harder"), "B", "A"), YES, "B loses 11.5 ± 0.7, A 6.0"),
        (loses_more(("mild", "harder"), "A", "B"), NO, "A loses 6.0 ± 0.7, B 11.5"),
        (costs("mild", "A", "B", 0.1), YES, "A 80.0 ± 0.5, B 79.5 ± 0.5, +1 %"),
        (costs("harder", "A", "B", 0.07), NO, "+9 %"),
        (costs("harder", "A", "B", 0.09), OPEN, "+9 %"),
        (at_edge(falling("hard", "A", "B"), "B"), OPEN, "A 73.0 ± 0.5"),
    ],
)
def test_claims_are_judged_by_intervals(judge, verdict, said, tmp_path):
    found = judge(scores_of(tmp_path, TABLE))
    assert found.verdict == verdict
    assert said in found.ours


def test_an_auc_for_every_seed_becomes_a_score(tmp_path):
    path = tmp_path / "runs.csv"
    rows = ("dataset,panel,value,method,seed,auc", "a8a,agents,5,m,0,0.7")
    rows += ("a8a,agents,5,m,1,0.8", "a8a,agents,5,n,0,0.5", "")
    path.write_text("\n".join(rows))
    found = read(path)
    t = 12.7062  # of one degree of freedom
    score = found["a8a, agents 5", "m"]
    assert score == (75, pytest.approx(t * 5, abs=0.01), pytest.approx((70, 80)), 1, "")
    assert above(["a8a, agents 5"], "m", "n")(found).verdict == OPEN


def test_differences_are_taken_seed_by_seed(tmp_path):
    table = TABLE.replace("A,73.0,0.5,", "A,73.0,9,60 73 86")
    table = table.replace("B,70.0,0.5,", "B,70.0,9,58 70 82")
    scores = scores_of(tmp_path, table)
    assert falling("hard", "A", "B")(scores).verdict == YES  # 2, 3, 4 points
    half = pytest.approx(4.30265 / math.sqrt(3), abs=0.005)
    a, b = scores["hard", "A"], scores["hard", "B"]
    assert minus(a, b) == (3, half, (2, 3, 4), 1, "")
    assert minus(a._replace(runs=(86, 60, 73)), b).half > 9
    # without the same seeds half widths add in quadrature
    assert minus(a._replace(runs=(73, 73)), b).half == math.hypot(9, 9)
    assert minus(Score(3, 0.3), Score(1, 0.4)) == (2, pytest.approx(0.5), (), 1, "")
    assert math.isinf(minus(Score(3), Score(-math.inf)).mean)


def test_uploads_and_losses_are_compared(tmp_path):
    head = "setting,method,score,interval,by_seed,bytes_up_per_round,train_loss_by_seed"
    rows = ["s,A,1,,,200,2 2 2", "s,B,2,,,105,1 1.1 0.9", "s,C,3,,,100,1.5 1 1"]
    scores = scores_of(tmp_path, "\n".join([head, *rows, "s,D,diverged,,,,", ""]))
    judge = lambda times: cheaper("s", times, than="C")(scores)
    assert judge({"A": 2, "B": 1.05})[:2] == ("s: A 2.00, B 1.05", YES)
    assert judge({"A": 2, "B": 1.04}).verdict == NO
    assert least(train_loss("s"), "B", "A", "C")(scores).verdict == OPEN
    assert least(train_loss("s"), "A", "B", "C")(scores).verdict == NO
    assert "2.000 ± 0.000, rank 3 of 3" in least(train_loss("s"), "A")(scores).ours
    # uploads and losses are no scores
    assert "3.0, rank 1 of 4" in first("s", "C")(scores).ours


def test_a_best_rate_at_an_edge_decides_nothing(tmp_path):
    head = "setting,method,score,interval,by_seed,edge\n"
    rows = "s,A,9,1,,lr\ns,B,1,1,,\ns,C,0,0.5,,\ns,D,9,0,,\n"
    scores = scores_of(tmp_path, head + rows)
    found = falling("s", "A", "B")(scores)
    assert found.verdict == OPEN
    assert found.why == "best at a grid's edge: A"
    assert falling("s", "D", "B")(scores)[1:3] == (YES, "")


def test_no_comparison_is_counted_twice():
    """The page says so of the kept results."""
    seen = {}
    for claim, result in results.judged(RESULTS):
        assert claim.id not in seen.values()
        for cells in {frozenset(gap.cells) for gap in result.gaps}:
            assert seen.setdefault(cells, claim.id) == claim.id, claim.claim


def test_the_kept_page_follows_from_the_kept_tables():
    assert results.page(RESULTS) == (RESULTS / "claims.md").read_text()


def folder(root, name, table=TABLE):
    place = root / "runs" / "paper" / name
    place.mkdir(parents=True)
    (place / "result.md").write_text("# Paper, table_1: all\n\n![](result.png)\n")
    (place / "result.csv").write_text(table)
    (place / "result.json").write_text("{}")
    (place / "result.png").write_bytes(b"png")


def test_results_are_collected_and_listed(tmp_path, monkeypatch, capsys):
    folder(tmp_path, "table_1-cpu")
    claims = tuple(
        Claim(name, "P", f"{name} is best", "curves", f"papers/paper/{table}", judge)
        for name, table, judge in (
            ("A", "table_1", first("hard", "A", "B", "C")),
            ("B", "table_2", first("hard", "B")),
            ("C", "table_1", first("harder", "C")),
        )
    )
    own = ("X", "P", "A leads", "-", "papers/paper/table_1", first("harder", "A"))
    claims += (Claim(*own, "small", False),)
    monkeypatch.setattr(results, "CLAIMS", claims)
    place = tmp_path / "results"
    results.main(tmp_path / "runs", place)
    assert (place / "papers/paper/table_1.md").read_text().endswith("(table_1.png)\n")
    assert (place / "papers/paper/table_1.png").read_bytes() == b"png"
    assert (place / "papers/paper/table_1.json").read_text() == "{}"
    index = (place / "papers/README.md").read_text()
    assert "- [Paper, table_1: all](paper/table_1.md)" in index
    assert "- fedmuon_001: figure_1, figure_2\n" in index
    page = (place / "claims.md").read_text()
    assert "| P | A is best | curves | hard: 73.0 ± 0.5, rank 1" in page
    assert "B is best" not in page
    assert "Of 1 claims: 1 reproduced, 0 contradicted, 0 undecided." in page
    printed, _, own = page.partition("## Experiments that are not in the papers")
    assert "A leads" not in printed
    assert "A leads" in own
    assert "| **reproduced** (small) |" in own
    said = capsys.readouterr().out
    assert "no run: B is best" in said
    assert "no run: C is best (('harder', 'C'))" in said
    folder(tmp_path, "table_1-full")
    with pytest.raises(SystemExit):
        results.main(tmp_path / "runs", place)
    assert "are both of table_1" in capsys.readouterr().err


NOT_DRAWN = {  # whose studies are finished, or draw their figures themselves
    "benchmarks/workloads_cpu",
    "language_models/plays",
    "minimax/tails",
    "newton_schulz/digits",
    *(f"privacy/reconstruction_{n}" for n in ("mnist", "fashion_mnist", "digits")),
    "robust/digits",
    *(f"rules/{name}" for name in ("digits", "fashion_mnist")),
    "tuning/plateaus",  # by the board
    "theory/stall",
}


def test_kept_figures_are_those_that_are_drawn():
    drawn = {place for found in figures.ALL for place, _ in found(RESULTS)}
    kept = {path.with_suffix("") for path in RESULTS.rglob("*.png")}
    left = {place.relative_to(RESULTS).as_posix() for place in kept - drawn}
    assert left == NOT_DRAWN


def test_a_kept_point_has_the_spread_of_its_line():
    line = figures.read(RESULTS / "sweeps" / "points.csv")[0]
    point = figures.kept_point(line)
    assert len(point.runs) == 5
    expected = [float(line[f"test_accuracy_{of}"]) for of in ("mean", "std")]
    assert point.last("test_accuracy") == pytest.approx(expected)

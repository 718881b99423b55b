"""The pages: what they show runs, and what they say is so."""

import ast
import contextlib
import csv
import functools
import importlib
import io
import re
import shlex
import sys
import tempfile
import textwrap
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import yaml

import fedjax_muon
from benchmarks import table
from fedjax_muon import compression, core, decentralized, minimax
from fedjax_muon.algorithms import ALL
from fedjax_muon.algorithms.registry import Source
from fedjax_muon.cli.main import main
from fedjax_muon.core import tree
from fedjax_muon.decentralized import gossip
from fedjax_muon.decentralized.private_methods import ALL as PRIVATE
from tests.support import method_tables
from tests.support.printed import ROOT, blocks, code_lines

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
CLAIMS = (ROOT / "results" / "claims.md").read_text()


def run(*codes: str, page: str) -> dict[str, Any]:
    """The names of blocks that ran; each uses what those before it have made."""
    names: dict[str, Any] = {"__name__": "shown"}
    for code in codes:
        exec(compile(code, page, "exec"), names)
    return names


FRONT = ("data", "devices", "command_line")
EXECUTED = [DOCS / f"{name}.md" for name in FRONT]
for _folder in ("concepts", "how_to", "algorithms"):
    EXECUTED += DOCS.glob(f"{_folder}/*.md")
SHOWN = {str(p.relative_to(DOCS)): code for p in EXECUTED if (code := blocks(p))}


@functools.cache
def executed(page: str) -> tuple[dict[str, Any], str]:
    """The names that a page makes, and what it prints; it runs once for all tests."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),  # some write files
        contextlib.redirect_stdout(io.StringIO()) as output,
    ):
        return run(*SHOWN[page], page=page), output.getvalue()


@pytest.mark.parametrize("page", sorted(SHOWN))
def test_the_python_shown_runs(page):
    executed(page)


# -------------------------------------------------------------- the project
def test_the_interfaces_shown_are_those_of_the_package():
    names = run(*blocks(DOCS / "design.md"), page="design.md")
    graphs = gossip.Gossip, gossip.Estimator
    for real in (core.Exchange, core.Algorithm, core.Objective, *graphs):
        fields = names[real.__name__]._fields
        assert fields == real._fields[: len(fields)]


def test_the_files_of_the_map_exist():
    design = (DOCS / "design.md").read_text()
    section = design[design.index("## Folders") : design.index("## Verification")]
    names = re.findall(r"`([\w/]+(?:\.py|/))`", section)
    assert len(names) > 10
    for name in names:
        places = (ROOT / name, ROOT / "fedjax_muon" / name)
        assert any(place.exists() for place in places), name


def test_versions_of_the_project_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == fedjax_muon.__version__
    assert f"## {fedjax_muon.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert citation["license"] in (ROOT / "pyproject.toml").read_text()
    entry = (ROOT / "fedjax_muon/papers.bib").read_text().split("\n\n")[-1]
    assert f"version = {{{fedjax_muon.__version__}}}" in entry


def test_the_menu_calls_pages_as_their_headings_do():
    """Lines of the nav without titles are shown as the headings of their pages."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = [page for section in nav for page in section.popitem()[1]]
    assert len(pages) > 40
    assert [page for page in pages if not isinstance(page, str)] == []


def test_the_hosted_site_is_installed_as_the_quickstart_says():
    settings = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    (install,) = settings["python"]["install"]
    (extra,) = install["extra_requirements"]
    assert f'`".[{extra}]"`' in (DOCS / "getting_started.md").read_text()
    assert (ROOT / settings["mkdocs"]["configuration"]).is_file()


# -------------------------------------------------------------- the methods

PAGES = method_tables.PAGES
TEXTS = {p.stem: p.read_text() for p in sorted(DOCS.glob("algorithms/*.md"))}


def table_of(page: str, header: list[str]) -> list[list[str]]:
    """The rows below that header; there is one such table on a page."""
    (found,) = [one for one in method_tables.tables(TEXTS[page]) if one[0] == header]
    return found[2:]


def costs_header(page: str) -> list[str]:
    of_graphs = page in ("decentralized", "private")
    return method_tables.GOSSIP_COSTS if of_graphs else method_tables.COSTS


def methods_of(page: str) -> list[str]:
    rows = table_of(page, method_tables.OPTIONS)
    return [row[0].strip("`") for row in rows]


def test_every_method_is_on_exactly_one_page():
    on = {page: methods_of(page) for page in PAGES}
    four = on["muon"] + on["averaging"] + on["adaptive"] + on["adapters"]
    assert Counter(four) == Counter(list(ALL))
    assert Counter(on["minimax"]) == Counter(list(minimax.ALL))
    assert Counter(on["decentralized"]) == Counter(list(decentralized.ALL))
    assert Counter(on["private"]) == Counter(list(PRIVATE))


@pytest.mark.parametrize("page", PAGES)
def test_costs_and_options_are_those_of_the_code(page):
    tables = [(method_tables.OPTIONS, method_tables.option_rows(page))]
    if page != "adapters":  # their costs depend on the ranks; the page has formulas
        tables.append((costs_header(page), method_tables.cost_rows(page)))
    for header, rows in tables:
        wanted = [rows[name] for name in methods_of(page)]
        text = "\n".join(method_tables.as_markdown(header, wanted))  # what to put there
        assert table_of(page, header) == wanted, text


@pytest.mark.parametrize("page", PAGES)
def test_every_section_says_when_and_what_departs(page):
    sections = re.split(r"^## ", TEXTS[page], flags=re.MULTILINE)[1:]
    with_updates = [s for s in sections if "$$" in s]
    assert len(with_updates) >= 2
    for section in with_updates:
        assert "**When.**" in section, section.splitlines()[0]
        assert "**Departs from the paper.**" in section, section.splitlines()[0]


def test_compressors_send_what_the_table_says():
    tables = method_tables.tables(TEXTS["compression"])
    (rows,) = [one for one in tables if one[0][0] == "compressor"]
    matrix = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    for code, _, numbers in rows[2:]:
        compressor = eval(code.strip("`"), dict(vars(compression)))
        sent = jax.eval_shape(compressor.encode, matrix, key)
        assert tree.nbytes(sent) == 4 * int(numbers), code


def test_every_algorithm_is_in_the_table():
    page = (DOCS / "algorithms" / "methods.md").read_text()
    tables = [one[2:] for one in method_tables.tables(page) if one[0][0] == "name"]
    cells = [(row[0].strip("`"), *row[1:]) for table in tables for row in table]
    shown = [row[:4] for row in cells]
    registries = ALL, minimax.ALL, decentralized.ALL, PRIVATE
    methods: list[Any] = [row for every in registries for row in every.items()]
    plain = [(*row, re.sub(r"\[(.*)\]\(.*\)", r"\1", source)) for *row, source in shown]
    assert plain == [(name, m.label, m.paper, m.source) for name, m in methods]
    on = {name: family for family in PAGES for name in methods_of(family)}
    wanted = [(*row, *method_tables.trait_row(on[row[0]], row[0])) for row in shown]
    assert cells == wanted, "\n".join(f"| {' | '.join(row)} |" for row in wanted)
    linked = [row[0] for row, same in zip(shown, plain, strict=True) if row != same]
    assert linked == [name for name, m in methods if m.source is Source.DEPARTS]
    unverified = [name for name, m in methods if m.source is Source.UNVERIFIED]
    for front in README, (DOCS / "index.md").read_text():
        assert f"except for [{len(unverified)} of {len(methods)}]" in front
        own = sum(m.source is Source.OURS for _, m in methods)
        assert f"and {own} of our own" in " ".join(front.split())


# ------------------------------------ numbers of choose.md, and of the speed

CHOOSE = DOCS / "choose.md"
LINK = re.compile(r"\]\((\.\./results/[^)#]+|board\.md)\)")
NUMBER = re.compile(r"(?<![\w.])\d*\.\d+|(?<![\w.])\d+(?![\w.])")
PAIR = re.compile(r"(\d+\.\d+)\s±\s(\d+\.\d+)")
DECIMAL = re.compile(r"(?<![\w.(])\d+\.\d+(?!\w)")
BLOCKS = [
    block
    for part in re.split(r"\n\n|\n(?=[|-])", CHOOSE.read_text())
    if LINK.search(block := " ".join(part.split()))
]


def has(line: str, text: str) -> bool:
    """Whether a line has a number that rounds to a text, perhaps in percent."""
    half = 0.5 * 10.0 ** -len(text.partition(".")[2]) + 1e-9
    found = [float(n) for n in NUMBER.findall(line.replace(",", ""))]
    near = lambda n: abs(n - float(text)) <= half
    return any(near(n) or near(100 * n) for n in found)


def unfounded(block: str, tables: list[str]) -> list[str]:
    """Returns the numbers of a text that are not in any line of its tables."""
    lines = [line for one in tables for line in one.splitlines()]
    singles = DECIMAL.findall(PAIR.sub("", block))
    groups = [*PAIR.findall(block), *((single,) for single in singles)]
    return [
        " ± ".join(group)
        for group in groups
        if not any(all(has(line, n) for n in group) for line in lines)
    ]


@pytest.mark.parametrize("block", BLOCKS)
def test_numbers_are_those_of_the_linked_tables(block):
    tables = [(CHOOSE.parent / link).read_text() for link in LINK.findall(block)]
    assert unfounded(LINK.sub("", block), tables) == []


def test_differences_of_choose_are_those_of_the_board():
    section = CHOOSE.read_text().partition("## With a server")[2].partition("\n## ")[0]
    board, _, _ = section.partition("These are studies")
    pairs = re.findall(r"\d+\.\d ± \d+\.\d", board)
    page = (DOCS / "board.md").read_text()
    assert len(pairs) > 15
    assert [
        pair for pair in pairs if f"+{pair}" not in page and f"-{pair}" not in page
    ] == []


def test_numbers_of_speed_are_those_of_the_results():
    """On their pages as tables, in the README as ratios of their cells, or seconds."""
    kept = ROOT / "results" / "benchmarks"
    speed, every = (DOCS / "speed.md").read_text(), (kept / "README.md").read_text()
    for name in "newton_schulz_xeon", "convolutions_cpu", "workloads_cpu":
        tables = "\n".join(table.markdown(table.read([kept / f"{name}.jsonl"])))
        assert tables in every
    contenders, algorithms, paired = tables.split("\n\n")[:3]
    assert contenders in speed
    assert algorithms in speed
    cells = lambda line: line.strip("| ").split(" | ")[1:]
    loops = [float(cells(line)[0].split()[0]) for line in paired.splitlines()[2:]]
    found = [*loops, *(1 / x for x in loops)]
    for one, (i, j) in (contenders, (0, 1)), (algorithms, (1, 0)):
        for line in one.splitlines()[2:]:
            row = [float(x.strip("*-") or "nan") for x in cells(line)]
            found.append(row[i] / row[j])
    seconds = []
    for file, key in (
        ("workloads_xeon", "wall_seconds_min"),
        ("h100", "wall_seconds"),
        ("h200", "wall_seconds"),
    ):
        walls = {
            (row["workload"], row["contender"].partition(",")[0]): row[key]
            for row in table.read([kept / f"{file}.jsonl"])
            if row.get("algorithm", "fedavg") == "fedavg"
        }
        for (name, who), wall in walls.items():
            if who == "PyTorch loop":
                found.append(wall / walls[name, "fedjax_muon"])
        seconds += walls.values()
        assert all(f"{wall:.3g}" in every for wall in walls.values())
        if file != "workloads_xeon":
            shown = re.findall(rf"^\| {file.upper()} \|.*", speed, re.MULTILINE)
            assert shown
            assert all(line in every for line in shown)
    section = README[README.index("On one core") : README.index("## Documentation")]
    known = {f"{x:.1f}" for x in found + [1 / x for x in found]}
    known |= {f"{x:.2f}" for x in seconds}
    assert [n for n in re.findall(r"\d+\.\d+", section) if n not in known] == []


# -------------------------------------------------------- the frequent errors

ERROR = re.compile(r"^``` {.text .error}\n(.*)\n```$", re.MULTILINE)
QUOTED = ERROR.findall((DOCS / "faq.md").read_text())
ONLY_VALUES = 12  # letters that a message must have beside what it is filled with


def pattern_of(node: ast.expr) -> str | None:
    """What a string of the code matches; its values may be any text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [pattern_of(part) for part in node.values]
        return "".join("(?:.*)" if part is None else part for part in parts)
    return None


@functools.cache
def messages() -> list[re.Pattern[str]]:
    """All strings of the package that are long enough for a message."""
    found = set()
    for path in (ROOT / "fedjax_muon").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            text = pattern_of(node) if isinstance(node, ast.expr) else None
            if text and len(re.sub(r"\(\?:\.\*\)|\W", "", text)) > ONLY_VALUES:
                found.add(text)
    return [re.compile(text) for text in found]


def is_in_the_code(quoted: str) -> bool:
    return any(message.fullmatch(quoted) for message in messages())


def test_every_quoted_error_is_in_the_code():
    assert len(QUOTED) > 12
    assert [quoted for quoted in QUOTED if not is_in_the_code(quoted)] == []
    assert not is_in_the_code(QUOTED[0].replace("flips", "turns"))


# ---------------------------------------- the tutorial, and the study of workers

STEPS = [DOCS / "getting_started.md", *sorted(DOCS.glob("tutorial/[1-9]*.md"))]
FENCE = re.compile(r'^( *)```(\w*)(?: title="([^"\n]+)")?\n(.*?)^\1```', re.S | re.M)
NOT_HERE = "pip install "  # done before the tests


def numberless(printed: str) -> list[str]:
    """The words of an output; its numbers are those of one machine."""
    text = re.sub(r"[\d.,]+", "0", printed)
    return re.sub(r"\s*\|\s*", " | ", text).split()


def run_command(line: str) -> None:
    """What a shell would do with a line of a page."""
    if not line.startswith(NOT_HERE):
        program, *words = shlex.split(line)
        assert program == "fedjax-muon", line
        main(words)


def test_the_tutorial_runs_to_its_last_step(tmp_path, monkeypatch, capsys):
    """Commands and Python run as they are printed, in one directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert len(STEPS) == 4
    for page in STEPS:
        names, printed = {"__name__": page.stem}, None
        for _, language, title, indented in FENCE.findall(page.read_text()):
            code = textwrap.dedent(indented)
            if language == "bash":
                for line in code.replace("\\\n", "").splitlines():
                    run_command(line)
            elif title:
                Path(title).write_text(code)
                importlib.invalidate_caches()  # a module that was not there before
            elif language == "python":
                capsys.readouterr()
                exec(compile(code, page.name, "exec"), names)
                printed = capsys.readouterr().out
            else:
                assert language == "text", page
                assert numberless(printed) == numberless(code), page
    sys.modules.pop("my_method", None)


def test_the_first_private_command_learns(tmp_path, monkeypatch, capsys):
    """As printed; the noise differs each time: 0.875 to 0.903 in seven runs."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "privacy.md").read_text()
    (command,) = [line for line in code_lines(page) if "train dp_fedmuon" in line]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of hopeless noise, above all
        run_command(f"{command.strip()} --ledger ledger.json")
    *_, last, _ = capsys.readouterr().out.splitlines()
    (shown,) = re.findall("^test accuracy .*", page, re.M)
    assert numberless(last) == numberless(shown)
    assert float(last.split()[2]) > 0.8
    assert float(shown.split()[2]) == pytest.approx(float(last.split()[2]), abs=0.08)


def test_the_study_shown_prints_what_the_page_says(tmp_path, monkeypatch, capsys):
    """In this process: executors have tests of their own."""
    threads = lambda count, mp_context: ThreadPoolExecutor(count)
    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", threads)
    page = DOCS / "devices.md"
    *_, study, script = blocks(page, "py")
    (tmp_path / "study.py").write_text(study)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(script, page.name, "exec"), {"__name__": "__main__"})
    sys.modules.pop("study")
    shown = page.read_text().split("It prints the test accuracy")[1].split("```")[1]
    printed = capsys.readouterr().out.splitlines()
    accuracies = [ast.literal_eval(line) for line in printed]
    expected = [ast.literal_eval(line) for line in shown.split("\n")[1:-1]]
    assert len(accuracies) == len(expected) == 4
    for found, printed in zip(accuracies, expected, strict=True):
        assert abs(found[0] - printed[0]) < 0.02  # other versions round otherwise


# ------------------------------------- the README, and pages that it leads to

RULE = blocks(DOCS / "how_to" / "rule.md")


def lines(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip()]


@pytest.mark.parametrize("page", ["README.md", "docs/how_to/rule.md"])
def test_a_transformation_of_ones_own_is_federated_in_less_than_20_lines(page):
    codes = blocks(ROOT / page)
    assert len(lines(codes[1])) < 20
    if page == "README.md":
        assert len(lines(codes[0])) <= 11
        (home,) = blocks(DOCS / "index.md")  # prints in fewer words
        assert home.splitlines()[:-1] == codes[0].splitlines()[:-1]
        with contextlib.redirect_stdout(io.StringIO()) as printing:
            run(*codes, page=page)
        output = printing.getvalue()
    else:
        _, output = executed("how_to/rule.md")
    words = r"test accuracy after \d+ rounds: (?:\{.*# )?(\d\.\d+)$"
    found = re.compile(words, re.M).findall
    shown, printed = found((ROOT / page).read_text()), found(output)
    # equal to the digit on one kind of processor; others round differently
    assert [*map(float, printed)] == pytest.approx([*map(float, shown)], abs=0.03)


def test_the_readme_has_the_table_that_compare_prints(tmp_path):
    main(["compare", "--directory", str(tmp_path / "runs")])
    with (tmp_path / "runs" / "summary.csv").open() as file:
        found = {row["method"]: row for row in csv.DictReader(file)}
    shown = re.findall(r"^\| (\S.*?) \| ([\d.]+.*?) \| ([\d.]+) ± .* \|$", README, re.M)
    assert [(name, lr) for name, lr, _ in shown] == [
        (name, row["lr"]) for name, row in found.items()
    ]
    # another processor's score, which the README prints below the table
    words = " ".join(README.split())
    other = dict(re.findall(r"same jax, (\S.*?) scored ([\d.]+) ±", words))
    assert other.keys() == {"Local Muon"}
    for name, _, mean in shown:  # other processors round differently
        score = 100 * float(found[name]["score_mean"])
        known = [float(mean), *(float(x) for k, x in other.items() if k == name)]
        assert any(score == pytest.approx(each, abs=2) for each in known), name


def test_the_readme_has_the_verdicts_of_the_claims():
    words = re.search(r"^Of \d+ claims: .*\.$", CLAIMS, re.M)
    assert words is not None
    total, reproduced, contradicted, undecided = re.findall(r"\d+", words[0])
    assert (
        f"Of {total} claims of the papers that we could run, {reproduced} are "
        f"reproduced, {contradicted} contradicted and {undecided} undecided"
    ) in " ".join(README.split())


def test_the_readme_and_the_new_algorithm_shown_are_short():
    assert len(README.splitlines()) <= 100
    new = blocks(DOCS / "how_to" / "algorithm.md")[1].split("\n\n\n")[1:3]
    assert len(new) == 2  # its state, and the function
    assert len("\n\n\n".join(new).splitlines()) <= 45


def test_code_shown_is_that_of_the_package_and_of_a_notebook():
    notebook = (ROOT / "notebooks" / "own_transformation.py").read_text()
    assert f"\n# %%\n{RULE[1]}\n# %%" in notebook
    path = ROOT / "fedjax_muon" / "algorithms" / "fedprox.py"
    source = re.sub(r'    """.*?"""\n', "", path.read_text(), flags=re.DOTALL)
    shown = blocks(DOCS / "how_to" / "algorithm.md")[0]
    assert lines(shown) == lines(source[source.index("from typing") :])


def test_the_minimax_task_shown_is_trained():
    trained = ("minimax", "simulation", 40), ("decentralized", "agents", 100)
    for page, name, rounds in trained:
        simulated = executed(f"algorithms/{page}.md")[0][name]
        state, _ = simulated.train_rounds(simulated.init(jax.random.key(0)), rounds)
        assert float(simulated.evaluate(state)["test_auc"]) > 0.9


# ------------------------------------------------------------------- the language
SHOWN_CODE = re.compile(r"^( *)```(?:python|bash)[^\n]*\n(.*?)^\1```$", re.S | re.M)


ONE_LINE = [line for line in README.splitlines() if line.startswith("python3 -m venv")]


def test_code_fits_the_column():
    """At 1280 pixels, lines of more than 80 letters scroll sideways."""
    hidden = re.compile(r"^<!-- test\n.*?^-->$", re.S | re.M)
    found = [
        f"{path.name}: {line}"
        for path in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for indent, code in SHOWN_CODE.findall(hidden.sub("", path.read_text()))
        for line in code.splitlines()
        if len(line) > 80 + len(indent) and line not in ONE_LINE
    ]
    assert not found, "\n".join(found)

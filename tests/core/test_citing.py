"""BibTeX of an algorithm has the papers of its method, its rules and its wrappers."""

import ast
import re
from pathlib import Path

import pytest

import fedjax_muon as fm
from fedjax_muon import citing
from fedjax_muon.algorithms.registry import Source
from fedjax_muon.privacy.client_mechanism import private_clients

TABLES = (fm.algorithms.ALL, fm.minimax.ALL, fm.decentralized.ALL)
TABLES += (fm.decentralized.PRIVATE_METHODS,)
METHODS = {name: method for table in TABLES for name, method in table.items()}
ARXIV = re.compile(r"arXiv:\d{4}\.\d{4,5}")


def keys(algorithm) -> list[str]:
    """The keys of the entries, without the library's, which is the last one."""
    *found, last = re.findall(r"^@\w+\{(\w+),$", fm.cite(algorithm), re.MULTILINE)
    assert last == citing.SOFTWARE
    return found


def sources() -> dict[str, str]:
    """All `Source:` paragraphs of the package's docstrings, by where they are."""
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Module)
    found = {}
    for path in sorted(Path(fm.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kinds) and citing.source_of(ast.get_docstring(node)):
                place = f"{path.name}:{getattr(node, 'name', '')}"
                found[place] = citing.source_of(ast.get_docstring(node))
    made = {name: m.function.__doc__ for name, m in METHODS.items()}
    return found | {name: citing.source_of(text) for name, text in made.items()}


def unknown(source: str) -> list[str]:
    """The arXiv ids in a paragraph that no entry has."""
    return sorted(set(ARXIV.findall(source)) - set(citing.marks().values()))


def faults(entry: str) -> list[str]:
    """What is wrong with an entry."""
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry, re.MULTILINE))
    found = [f"no {name}" for name in ("author", "year") if not fields.get(name)]
    found += [] if "title" in fields or "note" in fields else ["no title"]
    found += [] if len(fields) == len(entry.splitlines()) - 2 else ["a broken line"]
    found += [] if entry.count("{") == entry.count("}") else ["unequal braces"]
    found += [] if entry.isascii() else ["a letter that BibTeX does not read"]
    given = fields.get("eprint", "0000.00000")
    found += [] if re.fullmatch(r"\d{4}\.\d{4,5}", given) else ["no arXiv id"]
    # a paper is published after it is on arXiv, or at once
    found += ["older than on arXiv"] if given[:2] > fields.get("year", "")[2:] else []
    return found


def test_entries_are_whole():
    entries = citing.papers()
    assert {key: faults(entry) for key, entry in entries.items() if faults(entry)} == {}
    assert list(entries) == [*sorted(set(entries) - {citing.SOFTWARE}), citing.SOFTWARE]
    assert len(set(citing.marks().values())) == len(citing.marks()) == len(entries) - 1


def test_a_broken_entry_is_found():
    entry = citing.papers()["zhang2025fedmuon"]
    assert {"no year", "a broken line"} <= {*faults(entry.replace("  year", "year"))}
    assert faults(entry.replace("2510.03866", "03866")) == ["no arXiv id"]
    assert faults(entry.replace("= {2025}", "= {2024}")) == ["older than on arXiv"]
    assert faults(entry.replace("{On", "On")) == ["unequal braces"]


def test_every_named_paper_has_an_entry_and_every_entry_is_named():
    found = sources()
    missing = {place: unknown(text) for place, text in found.items() if unknown(text)}
    assert missing == {}
    named = {key for text in found.values() for key in citing.keys_of(text)}
    assert citing.marks().keys() - named == set()
    assert unknown("Source: arXiv:1602.05629 and arXiv:9999.00001") == [
        "arXiv:9999.00001"
    ]


def test_every_method_has_an_entry_or_is_defined_here():
    for name, method in METHODS.items():
        own = citing.keys_of(method.function.__doc__)
        assert own or method.source is Source.OURS, name
        assert keys(method.function())[: len(own)] == own, name


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (fm.fedavg(), "mcmahan2017fedavg"),
        (fm.fedmuon(), "zhang2025fedmuon jordan2024muon"),
        (fm.fedmuon_svd(), "liu2025fedmuon jordan2024muon"),
        (
            fm.local_soap(),  # a preset whose rule is made of its options
            "liu2026fedpac mcmahan2017fedavg vyas2025soap",
        ),
        (fm.compress(fm.fedprox(), fm.top_k(0.1)), "li2020fedprox"),
        (
            fm.compress(fm.fedprox(), fm.quantize(4), feedback=1.0),
            "li2020fedprox karimireddy2019error therien2025muloco",
        ),
        (
            fm.robust(
                fm.scaffold(
                    rule=fm.transforms.by_rank(fm.transforms.scale_by_normuon())
                ),
                fm.aggregators.chain(
                    fm.aggregators.bucketing(2), fm.aggregators.krum(0.2)
                ),
            ),
            "karimireddy2020scaffold karimireddy2022bucketing blanchard2017krum "
            "li2025normuon jordan2024muon",
        ),
        (fm.personalization.ditto(fm.fedavg()), "li2021ditto mcmahan2017fedavg"),
        (
            private_clients(
                fm.fedavg(), clip_norm=1.0, noise_multiplier=1.0, clients=9, cohort=3
            ),
            "mcmahan2018private mcmahan2017fedavg",
        ),
        (
            fm.decentralized.demuon(),
            "he2025demuon nedic2017achieving jordan2024muon",
        ),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_what_an_algorithm_is_made_of_is_cited(algorithm, expected):
    assert sorted(keys(algorithm)) == sorted(expected.split())


def test_a_method_is_cited_before_its_rule():
    first, second = fm.cite(fm.fedmuon()).split("\n\n")[:2]
    assert first.startswith("@misc{zhang2025fedmuon,\n  title = {{On Provable Benefits")
    assert "url = {https://kellerjordan.github.io/posts/muon/}" in second


def test_an_algorithm_of_ones_own_has_the_library_alone():
    """Also if its docstring names a paper that the library does not know."""

    @fm.recorded
    def mine(lr: fm.Hyper = 0.1) -> fm.Algorithm:
        """Mine.

        Source: arXiv:9999.00001.
        """
        given = fm.fedavg(lr=lr)
        return fm.Algorithm(given.init, given.init_client, ())

    assert fm.cite(mine()).startswith("@inproceedings{mcmahan2017fedavg")
    plain = fm.Algorithm(lambda params: params, lambda params: (), ())
    assert keys(plain) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [(fm.fedmuon, "got fedmuon; call it"), ("fedmuon", "got 'fedmuon'"), (3, "got 3")],
)
def test_what_is_no_algorithm_is_refused(value, said):
    with pytest.raises(TypeError, match=rf"^cite needs .* fm.fedmuon\(\), {said}$"):
        fm.cite(value)

"""The documentation site: built strictly, complete, and without a dead link."""

import ast
import base64
import json
import re
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OTHER_SITES = ("https:", "http:", "mailto:", "data:")


def documented() -> dict[str, set[str]]:
    """Public functions and classes with a docstring, by the part they belong to."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "fedjax_muon").rglob("*.py"):
        inside = path.relative_to(ROOT).with_suffix("").parts
        if inside[-1] == "__main__" or inside == ("fedjax_muon", "__init__"):
            continue
        module = ".".join(part for part in inside if part != "__init__")
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef)
            if public and not node.name.startswith("_") and ast.get_docstring(node):
                found.setdefault(inside[1], set()).add(f"{module}.{node.name}")
    return found


def test_the_reference_is_complete(site):
    """All that is public and documented is there, and fields with their comments."""
    for part, names in documented().items():
        html = (site / "reference" / part / "index.html").read_text()
        there = set(re.findall(r'id="(fedjax_muon\.[\w.]+)"', html))
        assert names <= there, sorted(names - there)
        assert f'href="{part}/"' in (site / "reference" / "index.html").read_text()
    exchange = (site / "reference" / "core" / "index.html").read_text()
    assert "value that is averaged" in exchange  # a comment of a field
    methods = (site / "reference" / "algorithms" / "index.html").read_text()
    assert "the mean of all clients' controls" in unescape(methods)  # without docstring


def test_every_page_is_built_with_its_formulas(site):
    """Every page is built, and its formulas are marked as such."""
    pages = [path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")]
    for page in pages:
        folder = page.parent if page.name in ("README", "index") else page
        assert (site / folder / "index.html").exists(), page
    muon = (site / "algorithms" / "muon" / "index.html").read_text()
    assert muon.count('class="arithmatex"') > 20
    assert "$" not in re.sub(r"<script.*?</script>", "", muon, flags=re.DOTALL)


def test_files_of_the_repository_have_pages(site):
    """Links out of the documentation lead to pages that were made for them."""
    html = (site / "studies" / "dpmixsgd" / "index.html").read_text()
    assert "source/experiments/papers/dpmixsgd_jobs.py/" in html
    model = (site / "how_to" / "model" / "index.html").read_text()
    assert "reference/transforms/#fedjax_muon.transforms.layout" in model
    shown = site / "source/experiments/papers/dpmixsgd_jobs.py" / "index.html"
    assert "robust logistic regression" in shown.read_text()
    contributing = (site / "contributing" / "index.html").read_text()
    assert 'href="../how_to/algorithm/"' in contributing
    assert 'href="../changelog/"' in contributing


def test_notebooks_are_pages_with_their_stored_outputs(site):
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        html = (site / "notebooks" / path.stem / "index.html").read_text()
        outputs = [
            output
            for cell in json.loads(path.read_text())["cells"]
            for output in cell.get("outputs", ())
        ]
        texts = ["".join(o["text"]) for o in outputs if o["output_type"] == "stream"]
        assert texts
        assert all(text.rstrip() in unescape(html) for text in texts)
        images = [o["data"]["image/png"] for o in outputs if "data" in o]
        shown = set(
            re.findall(rf'<a href="\.\./({path.stem}_\d+_\d+\.png)"><img', html)
        )
        stored = {base64.b64decode("".join(image)) for image in images}
        assert {(site / "notebooks" / name).read_bytes() for name in shown} == stored
        assert 'find_spec("fedjax_muon")' not in html  # the cell that installs


class Links(HTMLParser):
    """The links, files and anchors of a page."""

    def __init__(self, html: str):
        super().__init__()
        self.links: set[str] = set()
        self.files: set[str] = set()  # which a browser loads with the page
        self.anchors: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag, attributes) -> None:
        values = dict(attributes)
        if tag == "a" and values.get("href"):
            self.links.add(values["href"])
        if tag in ("img", "script", "iframe", "source") and values.get("src"):
            self.files.add(values["src"])
        if tag == "link" and values.get("rel") != "canonical":
            self.files.add(values["href"])
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}


@cache
def read(path: Path) -> Links:
    return Links(path.read_text())


def dead(site: Path, page: Path, link: str) -> bool:
    """Whether a link of a page leads to no file, or to no anchor of one."""
    parts = urlsplit(urljoin(f"/{page.relative_to(site).as_posix()}", link))
    target = site / unquote(parts.path).removeprefix("/")
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return True
    anchored = parts.fragment and target.suffix == ".html"
    return bool(anchored) and unquote(parts.fragment) not in read(target).anchors


def test_no_link_and_no_anchor_is_dead(site):
    faults = []
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":
            continue  # shown at any address; its links begin at the root of a domain
        found = read(page)
        inside = {x for x in found.links if not x.startswith(OTHER_SITES)}
        faults += [(page, x) for x in inside | found.files if dead(site, page, x)]
    assert not faults, "\n".join(f"{page}: {link}" for page, link in faults)


def test_files_are_asked_of_the_site_alone(site):
    pages = [(page, read(page).files) for page in site.rglob("*.html")]
    foreign = [(p, x) for p, files in pages for x in files if x.startswith("http")]
    assert not foreign
    for sheet in site.rglob("*.css"):
        asked = re.findall(r"url\([\"']?([^)\"']+)", sheet.read_text())
        inside = [url for url in asked if not url.startswith(("data:", "#"))]
        for url in inside:
            assert (sheet.parent / url.split("?")[0]).is_file(), (sheet, url)

"""The site: built strictly, complete, without a dead link, and seen in a browser."""

import ast
import base64
import json
import re
import subprocess
import sys
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from packages import needs

from fedjax_muon import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILES = list((ROOT / "fedjax_muon").rglob("*.py"))
OTHER_SITES = ("https:", "http:", "mailto:", "data:")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Where `mkdocs build --strict` has left the site, called from elsewhere."""
    needs("mkdocs")
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["--config-file", ROOT / "mkdocs.yml", "--site-dir", folder / "site"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def page_of(site: Path, name: str) -> str:
    return (site / name / "index.html").read_text()


def public(tree: ast.Module) -> set[str]:
    """The names that a module exports: its `__all__`, or what its stub imports."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    froms = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    return {alias.name for node in froms for alias in node.names}


def test_the_reference_has_all_exported_names_and_nothing_internal(site):
    pages = {path.parent.name: path for path in site.glob("reference/*/index.html")}
    assert all(f'href="{page}/"' in page_of(site, "reference") for page in pages)
    html = "".join(path.read_text() for path in pages.values())
    there = {name.split(".")[-1] for name in re.findall(r"<code>(fm\.[\w.]+)<", html)}
    package = ROOT / "fedjax_muon"
    modules = {p.parent.name if p.stem == "__init__" else p.stem for p in FILES}
    stubs = list(package.rglob("__init__.pyi"))
    lists = [p for p in package.glob("*/__init__.py") if "__all__ = [" in p.read_text()]
    assert len(stubs) > 1
    assert len(lists) > 5
    for path in stubs + lists:
        missing = public(ast.parse(path.read_text())) - there - modules
        assert not missing, (path, sorted(missing))
    for internal in ("atomic_files", "check_not_donated", "resume_command"):
        assert internal not in html
    assert "value that is averaged" in html  # a comment of a field
    assert "matrices [..., m, n]" in unescape(html).lower()  # and of an alias


def test_the_options_of_all_commands_have_a_page(site):
    html = page_of(site, "reference/options")
    for command in cli.command_kinds([]):
        assert f'id="fedjax-muon-{command}"' in html
    row = r"<code>--cohort-size INT</code></td>\s*<td>\w.*\(default: 8\)</td>"
    assert re.search(row, html)


def test_every_page_is_built_with_its_formulas(site):
    pages = [path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")]
    for page in pages:
        folder = page.parent if page.name in ("README", "index") else page
        assert (site / folder / "index.html").exists(), page
    muon = page_of(site, "algorithms/muon")
    assert muon.count('class="arithmatex"') > 20
    assert "$" not in re.sub(r"<script.*?</script>", "", muon, flags=re.DOTALL)


def test_notebooks_are_pages_with_their_stored_outputs(site):
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        html = page_of(site, f"notebooks/{path.stem}")
        cells = json.loads(path.read_text())["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        texts = ["".join(o["text"]) for o in outputs if o["output_type"] == "stream"]
        assert texts
        assert all(text.rstrip() in unescape(html) for text in texts)
        images = [o["data"]["image/png"] for o in outputs if "data" in o]
        link = rf'<a href="\.\./({path.stem}_\d+_\d+\.png)"><img'
        shown = set(re.findall(link, html))
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

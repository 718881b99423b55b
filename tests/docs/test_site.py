"""The site: built strictly, complete, without a dead link, and seen in a browser."""

import ast
import base64
import json
import re
import subprocess
import sys
import threading
from functools import cache, partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import chromium
import pytest
from packages import needs

from fedjax_muon import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILES = list((ROOT / "fedjax_muon").rglob("*.py"))
VERDICTS = ("reproduced", "contradicted", "undecided")
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


def test_all_claims_are_on_the_page_about_reproducibility(site):
    claims = (
        (ROOT / "results" / "claims.md").read_text().split("## Experiments that")[0]
    )
    html = page_of(site, "papers")
    for mark, verdict in zip("✓✗?", VERDICTS, strict=True):
        judged = claims.split("## Experiments that are not")[0].count(
            f"| **{verdict}**"
        )
        assert judged > 0
        assert html.count(f"<li>{mark} ") == judged + 1  # and what the mark means
        assert re.search(rf"Of \d+ claims:.*\b{judged} {verdict}", html)


def test_every_page_is_built_with_its_formulas(site):
    pages = [path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")]
    for page in pages:
        folder = page.parent if page.name in ("README", "index") else page
        assert (site / folder / "index.html").exists(), page
    muon = page_of(site, "algorithms/muon")
    assert muon.count('class="arithmatex"') > 20
    assert "$" not in re.sub(r"<script.*?</script>", "", muon, flags=re.DOTALL)


def test_methods_lead_to_functions_updates_and_papers(site):
    html = page_of(site, "algorithms/methods")
    cells = re.findall(r"<td>(.*?)</td>\s*<td>(.*?)</td>\s*<td>(.*?)</td>", html, re.S)
    assert len(cells) > 60
    for name, label, paper in cells:
        assert re.match(r'<a href="\.\./\w+/#(?!cost|options)', label), name
        assert ("arXiv:" in paper) == ("https://arxiv.org/abs/" in paper), name
    for name in ("fedmuon", "scaffold", "fedmuon_da", "gradient_tracking"):
        linked = rf'<a [^>]*href="\.\./\.\./reference/[^"]*\.{name}"><code>{name}<'
        assert re.search(linked, html), name


def test_files_of_the_repository_have_pages(site):
    """Links out of the documentation lead to pages that were made for them."""
    shown = "source/experiments/papers/dpmixsgd_jobs.py"
    assert f"{shown}/" in page_of(site, "studies/dpmixsgd")
    assert "robust logistic regression" in page_of(site, shown)
    assert "source/fedjax_muon/transforms/layout.py/" in page_of(site, "how_to/model")
    contributing = page_of(site, "contributing")
    assert 'href="../how_to/algorithm/"' in contributing
    assert 'href="../changelog/"' in contributing


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
        assert "!pip freeze" not in html  # the cell that installs


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
        for url in asked:
            file = sheet.parent / url.split("?")[0]
            assert url.startswith(("data:", "#")) or file.is_file(), (sheet, url)


WIDTHS = (1280, 390)
# of each search the page that has to be the first result
SEARCHES = {
    "installation": "getting_started/",
    "dirichlet": "reference/data/",
    "federate": "reference/fm/",
    "fedmuon": "algorithms/muon/",
    "polar": "reference/transforms/",
    "privacy": "privacy/",
    "resume": "reliability/",
    "scaffold": "algorithms/averaging/",
    "train": "reference/fm/",
}
# What sticks out of a page that is too wide; text in which a formula is left as it is
# written, and formulas that KaTeX does not understand.
WIDE = """(() => {
  const page = document.scrollingElement
  const moving = document.getAnimations()  // such as what a change of the width moves
  for (const one of moving)
    if (one.effect.getComputedTiming().endTime < Infinity) one.finish()
  if (page.scrollWidth <= WIDTH) return []
  const out = [...document.querySelectorAll("article *")].filter(
    (e) => e.getBoundingClientRect().right > WIDTH)
  return out.slice(0, 3).map((e) => e.outerHTML.slice(0, 80)).concat(page.scrollWidth)
})()"""
RAW = r"""(() => {
  const found = [...document.querySelectorAll(".katex-error")].map((e) => e.title)
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const text = texts.currentNode
    if (text.parentElement.closest("code, pre, script, style, .katex")) continue
    if (/\$[^$]+\$|\\\(|\\\[/.test(text.data)) found.push(text.data.slice(0, 80))
  }
  const marked = [...document.querySelectorAll(".arithmatex:not(:has(.katex))")]
  return found.concat(marked.map((e) => e.textContent.slice(0, 80)))
})()"""
SEARCH = """(async () => {
  const field = document.querySelector("[data-md-component=search-query]")
  field.focus()
  field.value = %s
  field.dispatchEvent(new Event("keyup"))
  for (let wait = 0; wait < 100; wait++) {
    await new Promise((done) => setTimeout(done, 50))
    const links = [...document.querySelectorAll(".md-search-result__link")]
    const ofThis = links.some((a) => new URL(a.href).searchParams.get("h") == %s)
    if (ofThis) return [...new Set(links.map((a) => a.href.replace(/[?#].*/, "")))]
  }
  return []
})()"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
BUTTON = "document.querySelector('[data-md-component=palette] label:not([hidden])')"


class Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # one connection for many files

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()

    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture(scope="module")
def address(site):
    """The site on a port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with chromium.browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


def test_pages_fit_show_their_formulas_and_ask_no_other_host(site, address, tab):
    faults, widths = [], WIDTHS
    tab.block("*/search_index.json")  # of which every page would make an index again
    for path in sorted(site.rglob("*.html")):
        page = path.relative_to(site).as_posix().removesuffix("index.html")
        tab.open(address + page)
        faults += [(page, "formula", raw) for raw in tab.evaluate(RAW)]
        widths = widths[::-1]  # the last width of a page is the first of the next
        for width in widths:
            tab.resize(width)
            found = tab.evaluate(WIDE.replace("WIDTH", str(width)))
            faults += [(page, width, wide) for wide in found]
        asked = tab.requested()
        assert address + page in asked
        foreign = [url for url in asked if not url.startswith((address, "data:"))]
        faults += [(page, "request", url) for url in foreign]
    assert not faults, "\n".join(map(str, faults))


def test_the_first_result_is_the_page_a_user_wants(address, tab):
    tab.block()
    tab.resize(WIDTHS[0])
    tab.open(address)
    for word, page in SEARCHES.items():
        terms = word.replace("-", " ")  # as the address of a result has them
        links = tab.evaluate(SEARCH % (json.dumps(word), json.dumps(terms)))
        assert links[0] == address + page, (word, links[:3])


def test_the_search_has_the_pages_of_the_navigation(site):
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].split("#")[0] for entry in index["docs"]}
    hidden = ("results/", "source/", "studies/", "algorithms/presets/")
    assert not [location for location in found if location.startswith(hidden)]
    assert {"", "getting_started/", "choose/", "algorithms/muon/"} <= found


def test_the_button_switches_colors(address, tab):
    tab.open(address)
    colors = []
    for _ in range(4):
        colors.append(tab.evaluate(BACKGROUND))
        tab.evaluate(f"{BUTTON}.click()")
    assert len(set(colors)) == 2  # light ones and dark ones
    assert colors[3] == colors[0]  # after those of the system

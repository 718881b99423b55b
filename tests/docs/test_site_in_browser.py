"""Every page of the site in a browser, as wide as a desk's screen and as a phone's."""

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import chromium
import pytest

pytestmark = pytest.mark.slow

WIDTHS = (1280, 390)
# of each search a page that has to be among the first results
SEARCHES = {
    "dirichlet": "reference/data/",
    "checkpoint": "reliability/",
    "newton-schulz": "studies/newton_schulz/",
    "scaffold": "algorithms/averaging/",
    "accountant": "privacy/",
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
    faults = []
    widths = WIDTHS
    tab.block("*/search_index.json")  # of which every page would make an index again
    for path in sorted(site.rglob("*.html")):
        page = path.relative_to(site).as_posix().removesuffix("index.html")
        tab.open(address + page)
        faults += [(page, "formula", raw) for raw in tab.evaluate(RAW)]
        widths = widths[::-1]  # the last width of a page is the first of the next
        for width in widths:
            tab.resize(width)
            faults += [
                (page, width, wide)
                for wide in tab.evaluate(WIDE.replace("WIDTH", str(width)))
            ]
        asked = tab.requested()
        assert address + page in asked
        foreign = [url for url in asked if not url.startswith((address, "data:"))]
        faults += [(page, "request", url) for url in foreign]
    assert not faults, "\n".join(map(str, faults))


def test_the_search_finds_pages(address, tab):
    tab.block()
    tab.resize(WIDTHS[0])
    tab.open(address)
    for word, page in SEARCHES.items():
        terms = word.replace("-", " ")  # as the address of a result has them
        links = tab.evaluate(SEARCH % (json.dumps(word), json.dumps(terms)))
        assert address + page in links, (word, links)


def test_the_button_switches_colors(address, tab):
    tab.open(address)
    colors = []
    for _ in range(4):
        colors.append(tab.evaluate(BACKGROUND))
        tab.evaluate(f"{BUTTON}.click()")
    assert len(set(colors)) == 2  # light ones and dark ones
    assert colors[3] == colors[0]  # after those of the system

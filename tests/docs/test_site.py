"""The site is built strictly. In a browser, the search finds pages, and tables sort."""

import json
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support import chromium
from tests.support.packages import needs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COLUMN = 3  # rounds to the target, which some methods do not reach
SORTED = """(() => {
  const table = document.querySelectorAll("article table")[TABLE]
  table.querySelectorAll("th")[COLUMN].click()
  return [...table.querySelectorAll("tbody tr")].map(
    (row) => row.cells[COLUMN].textContent.trim())
})()""".replace("COLUMN", str(COLUMN))

FOUND = """(async () => {
  const input = document.querySelector("[data-md-component=search-query]")
  input.focus()
  input.value = QUERY
  input.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }))
  for (let tries = 0; tries < 200; tries++) {
    await new Promise((done) => setTimeout(done, 50))
    const link = document.querySelector("a.md-search-result__link")
    if (link) return new URL(link.href).pathname.slice(1)
  }
})()"""
QUERIES = {
    "": "cite, bibtex",
    "choose/": "which method",
    "concepts/privacy/": "epsilon",
    "concepts/randomness/": "resume",
    "data/": "csv, pytorch dataset, regression",
    "devices/": "4 gpus, slurm, out of memory",
    "getting_started/": "windows",
    "how_to/algorithm/": "custom algorithm",
    "how_to/deploy/": "deploy",
    "how_to/model/": "nnx, batchnorm",
    "how_to/results/": "predict",
    "tutorial/2_comparison/": "fair comparison, plot",
}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where `mkdocs build --strict`, called from elsewhere, is served.

    A link, an anchor or a name of the reference that leads nowhere fails the build.
    """
    needs("mkdocs")
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["--config-file", ROOT / "mkdocs.yml", "--site-dir", folder / "site"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    handler = partial(Quiet, directory=folder / "site")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_the_tables_of_the_board_sort_by_a_column(address, tmp_path):
    with chromium.browser(tmp_path) as tab:
        tab.open(f"{address}board/")
        rising, falling = (tab.evaluate(SORTED.replace("TABLE", "1")) for _ in range(2))
    rounds = [float(cell) for cell in rising if cell.isdigit()]
    assert len(rising) > len(rounds) > 10
    assert rounds == sorted(rounds)
    assert [float(cell) for cell in rising[: len(rounds)]] == rounds  # texts are last
    assert [float(cell) for cell in falling[-len(rounds) :]] == rounds[::-1]


LAPTOP = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
BEYOND = """[...document.querySelectorAll("article table")].map(
  (table) => table.scrollWidth - table.closest(".md-typeset__scrollwrap").clientWidth)
"""


def test_the_main_table_of_the_board_fits_a_laptop(address, tmp_path):
    with chromium.browser(tmp_path) as tab:
        tab.call("Emulation.setDeviceMetricsOverride", **LAPTOP)
        tab.open(f"{address}board/")
        assert tab.evaluate(BEYOND)[0] <= 0
        assert tab.evaluate('document.querySelectorAll("details table").length') > 9


FILTERED = """((words, trait) => {
  const form = document.querySelector("form.filter")
  form[0].value = words
  for (const box of form.querySelectorAll("[type=checkbox]"))
    box.checked = box.value === trait
  form.dispatchEvent(new Event("input"))
  return [...document.querySelectorAll("article tbody tr")]
    .filter((row) => row.checkVisibility()).map((row) => row.cells[0].textContent)
})"""


def test_methods_are_filtered_by_words_and_traits(address, tmp_path):
    with chromium.browser(tmp_path) as tab:
        tab.call("Emulation.setDeviceMetricsOverride", **LAPTOP)
        tab.open(f"{address}algorithms/methods/")
        assert max(tab.evaluate(BEYOND)) <= 0
        filtered = lambda *given: tab.evaluate(FILTERED + str(given))
        every, private = filtered("", ""), filtered("", "private")
        assert "dsgd" in set(every) - set(private)
        assert {"fedavg", "scaffold", "dp_sgda"} < set(private) < set(every)
        assert filtered("KARIMIREDDY 2020", "private") == ["scaffold"]
        assert filtered("karimireddy", "stateless") == []
        assert filtered("", "") == every


def test_pages_fit_a_phone_and_wide_tables_are_lists_there(address, tmp_path):
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    shown = 'getComputedStyle(document.querySelector("table[data-wide] tr")).display'
    width = "document.documentElement.scrollWidth"
    with chromium.browser(tmp_path) as tab:
        tab.open(f"{address}algorithms/muon/")
        assert tab.evaluate(shown) == "table-row"
        tab.call("Emulation.setDeviceMetricsOverride", **phone)
        assert tab.evaluate(shown) == "block"
        for page in ("", "algorithms/methods/", "board/", "choose/", "speed/"):
            tab.open(address + page)
            assert tab.evaluate(width) == phone["width"], page


def test_the_search_shows_the_right_page_first(address, tmp_path):
    found: dict[str, list[str]] = {page: [] for page in QUERIES}
    with chromium.browser(tmp_path) as tab:
        for query in ", ".join(QUERIES.values()).split(", "):
            tab.open(address)  # its results are empty
            page = tab.evaluate(FOUND.replace("QUERY", json.dumps(query)))
            found.setdefault(page, []).append(query)
    assert {page: ", ".join(queries) for page, queries in found.items()} == QUERIES


def test_llms_txt_links_to_pages_and_says_what_they_are_about(address):
    with urlopen(f"{address}llms.txt") as answer:
        text = answer.read().decode()
    title, _, summary = text.splitlines()[:3]
    assert title == "# fedjax_muon"
    assert summary.startswith("> Federated optimization")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    assert len(links) == len(set(links)) > 60
    for link in links:
        urlopen(address + link).close()  # raises for a page that is not there
    assert "](data/): Use a built-in dataset by name, or your own CSV file" in text

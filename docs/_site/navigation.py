"""The navigation: patterns, titles of the papers' results, and the repository.

Patterns in mkdocs.yml's nav stand for pages that no other line of it names. Headings of
the papers' results begin with the words of their command, as in
`minimax_000, figure_3_of_16: ...`; in the navigation they are `Figure 3 of 16: ...`.
"""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
ITEM = re.compile(r"# \w+, ((?:figure|table)_\w+): (.*)")


def named(nav) -> list[str]:
    """All paths and patterns of a nav, in its order."""
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [path for child in children for path in named(child)]


def matches(path: str, pattern: str) -> bool:
    """Whether a path is of the pattern; a star is for one name, not for folders."""
    return path.count("/") == pattern.count("/") and fnmatch(path, pattern)


def expanded(nav, pages: list[str]):
    """The nav with pages in the place of patterns; every page is taken once."""
    if isinstance(nav, dict):
        return {title: expanded(child, pages) for title, child in nav.items()}
    if isinstance(nav, str):
        return nav
    lines = []
    for line in nav:
        if isinstance(line, str) and "*" in line:
            taken = [page for page in pages if matches(page, line)]
            pages[:] = [page for page in pages if page not in taken]
            lines += taken
        else:
            lines.append(expanded(line, pages))
    return lines


def in_order(path: str) -> list[str | int]:
    """A key by which figure_10 comes after figure_2."""
    parts = re.split(r"(\d+)", path)
    return [int(part) if part.isdigit() else part for part in parts]


def title_of(heading: str) -> str | None:
    """The title of a result of a paper; none for other pages."""
    match = ITEM.match(heading)
    if match is None:
        return None
    return f"{match[1].replace('_', ' ').capitalize()}: {match[2]}"


def titled(nav, titles: dict[str, str]):
    """The nav with titles in front of the pages that have one."""
    if isinstance(nav, dict):
        return {title: titled(child, titles) for title, child in nav.items()}
    if isinstance(nav, str):
        return {titles[nav]: nav} if nav in titles else nav
    return [titled(child, titles) for child in nav]


def repository() -> str:
    """The address of the public repository; empty if it is not known."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return settings["tool"]["fedjax-muon"]["repository"]


def on_files(files, config):
    """Fills in the patterns, once all pages are known."""
    pages = {file.src_uri: file for file in files.documentation_pages()}
    left = sorted(set(pages) - set(named(config.nav)), key=in_order)
    nav = expanded(config.nav, left)
    results = [uri for uri in pages if uri.startswith("results/papers/")]
    found = {uri: title_of(pages[uri].content_string) for uri in results}
    config.nav = titled(nav, {uri: title for uri, title in found.items() if title})
    # Not repo_url, of which the theme would ask GitHub for numbers.
    if address := repository():
        config.nav.append({"Repository": address})
    return files

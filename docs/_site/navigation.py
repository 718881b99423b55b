"""The navigation: patterns, and the repository.

Patterns in mkdocs.yml's nav stand for pages that no other line of it names.
"""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]


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


def repository() -> str:
    """The address of the public repository; empty if it is not known."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return settings["tool"]["fedjax-muon"]["repository"]


def on_files(files, config):
    """Fills in the patterns, once all pages are known."""
    pages = {file.src_uri for file in files.documentation_pages()}
    config.nav = expanded(config.nav, sorted(pages - set(named(config.nav))))
    # Not repo_url, of which the theme would ask GitHub for numbers.
    if address := repository():
        config.nav.append({"Repository": address})
    return files

"""Links that are right in the repository are right on the site.

The site has the pages of docs/ and what programs wrote into results/. They link to
other files too, such as an experiment. On the site a notebook becomes its page; any
other file gets a page that shows it.
CHANGELOG.md, CONTRIBUTING.md, SECURITY.md and notebooks/README.md are pages too. A
figure is its .svg where there is one, and links to its file, since it is small on a
phone.
"""

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "results"
FIGURE = re.compile(r'(<img [^>]*src="([^"]+\.(?:png|svg))"[^>]*>)(?!\s*</a>)')
INTERVAL = re.compile(r"(?<=\d) ± (?=\d)")
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
ROOT_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "notebooks/README.md": "notebooks/README.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml"}
log = logging.getLogger("mkdocs.hooks.links")


def is_relative(target: str) -> bool:
    """Whether a link is to a file, not to a site."""
    return ":" not in target and not target.startswith("/")


def place_of(path: Path) -> str | None:
    """The page that stands for a file of the repository."""
    inside = path.relative_to(ROOT)
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path.is_relative_to(RESULTS) and path.is_file():
        return inside.as_posix()
    if inside.as_posix() in ROOT_PAGES:
        return ROOT_PAGES[inside.as_posix()]
    if path.parent == ROOT / "notebooks" and path.suffix in (".ipynb", ".png"):
        page = path.suffix.replace("ipynb", "md")
        return inside.with_suffix(page).as_posix()  # docs/_site/notebooks.py
    return f"source/{inside.as_posix()}.md" if path.is_file() else None


def targets(path: Path) -> set[Path]:
    """The files of the repository that a page links to."""
    found = [m[2] for m in LINK.finditer(path.read_text()) if is_relative(m[2])]
    paths = {(path.parent / target).resolve() for target in found}
    return {target for target in paths if target.is_relative_to(ROOT)}


def shown(path: Path) -> str:
    """A page that shows a file."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text()
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {name}\n\n````{language}\n{text.rstrip()}\n````\n"


def on_files(files, config):
    """Adds results, the pages from the root, and those of files that pages link to."""
    for path in sorted(filter(Path.is_file, RESULTS.rglob("*"))):
        uri = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    for name, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    written = [f for f in files.documentation_pages() if f.abs_src_path]
    linked = set().union(*(targets(Path(file.abs_src_path)) for file in written))
    for path in sorted(linked):
        uri = place_of(path)
        if uri and uri.startswith("source/"):
            files.append(File.generated(config, uri, content=shown(path)))
    return files


def without_tests(markdown: str) -> str:
    """A page without code that only tests read."""
    return re.sub(
        r"^<!-- test\n.*?^-->\n", "", markdown, flags=re.DOTALL | re.MULTILINE
    )


def on_page_markdown(markdown, page, config, files):
    """Leaves out tests; turns links to files of the repository into links to pages."""
    markdown = without_tests(markdown)
    if not page.file.abs_src_path:
        return markdown
    folder = Path(page.file.abs_src_path).parent

    def turned(match: re.Match[str]) -> str:
        path = (folder / match[2]).resolve()
        if not is_relative(match[2]) or not path.is_relative_to(ROOT):
            return match[0]
        if path.suffix == ".png" and path.with_suffix(".svg").is_file():
            path = path.with_suffix(".svg")  # sharp, and without a background
        uri = place_of(path)
        if uri is None:
            log.warning("%s links to %s, which is no file", page.file.src_uri, match[2])
            return match[0]
        start = posixpath.dirname(page.file.src_uri) or "."
        return match[1] + posixpath.relpath(uri, start) + match[3]

    return LINK.sub(turned, markdown)


def on_page_content(html, page, config, files):
    """Makes a figure a link to its file; keeps a number and its interval together."""
    html = INTERVAL.sub("&nbsp;±&nbsp;", html)
    return FIGURE.sub(r'<a href="\2">\1</a>', html)

"""Methods link to their functions, their updates and their papers.

On the page of all methods, the name in a row leads to the function, where it has an
entry in the API, and the label to the section with the update. On all pages of docs/,
arXiv ids lead to arXiv.
"""

import functools
import re
from pathlib import Path

from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[2]
FAMILIES = ("muon", "averaging", "adaptive", "adapters", "minimax", "decentralized")
FAMILIES += ("private",)
ARXIV = re.compile(r"(?<![\[\w/])arXiv:(\d{4}\.\d{4,5})")
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| (\w+)", re.MULTILINE)
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


@functools.cache
def functions() -> dict[str, str]:
    """The paths of methods' functions by name."""
    package = ROOT / "fedjax_muon"
    found = {}
    for place in ("algorithms/*.py", "decentralized/[dst]*.py"):
        for path in package.glob(place):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for name in re.findall(r"^@recorded\ndef (\w+)\(", path.read_text(), re.M):
                found[name] = f"{module}.{name}"
    return found


def bare(label: str) -> str:
    """A label by its letters and digits."""
    return re.sub(r"\W", "", label).lower()


@functools.cache
def sections() -> dict[str, str]:
    """Pages with anchors of sections with updates, by names of methods or authors."""
    found: dict[str, str] = {}
    for family in FAMILIES:
        text = (ROOT / f"docs/algorithms/{family}.md").read_text()
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            title, _, body = section.partition("\n")
            if not title.startswith(("Cost of", "Options")):
                anchor = slugify(title.replace("`", ""), "-")
                names = [bare(part) for part in re.split(", | and |: ", title)]
                names += re.findall(r"`(\w+)`", body) + re.findall(r"of (\w+)", title)
                for name in names:
                    found.setdefault(name, f"{family}.md#{anchor}")
    return found


def _row(match: re.Match[str]) -> str:
    name, label, author = match.groups()
    path, known = functions().get(name), sections()
    section = known.get(name) or known.get(bare(label)) or known.get(author)
    shown = f"[`{name}`][{path}]" if path else f"`{name}`"
    return f"| {shown} | {f'[{label}]({section})' if section else label} | {author}"


def on_page_markdown(markdown, page, config, files):
    """Adds the links."""
    if page.file.src_uri == "algorithms/methods.md":
        markdown = ROW.sub(_row, markdown)
        page.meta["hide"] = ["toc"]  # its tables need the room
    if not page.file.abs_src_path or page.file.src_uri.startswith("source/"):
        return markdown
    link = r"[arXiv:\1](https://arxiv.org/abs/\1)"
    parts = CODE.split(markdown)  # code is at odd places
    parts[::2] = [ARXIV.sub(link, part) for part in parts[::2]]
    return "".join(parts)

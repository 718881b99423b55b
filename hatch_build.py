"""What the metadata of the package says of the repository, whose address is a setting.

A package index shows the README far from the files that it links to. With the setting
`repository` of `pyproject.toml`, links lead to the repository; without it they become
plain text, pictures of the repository are left out, and the package has no URLs.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Code is matched first, so that nothing in it is taken for a link.
PARTS = re.compile(
    r"(?P<code>^```.*?^```$|`[^`]*`)"
    r"|(?P<image>!?)\[(?P<text>[^]]*)\]\((?P<target>[^)\s]+)\)(?P<end>\n\n)?",
    re.DOTALL | re.MULTILINE,
)


def repository(root: Path) -> str:
    """The address of the public repository; empty if it is not known.

    Raises `ValueError` for what is no address.
    """
    settings = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    address = settings["tool"]["fedjax-muon"]["repository"]
    if address and not re.fullmatch(r"https://[^\s/]+/\S*[^\s/]", address):
        raise ValueError(
            f"repository in pyproject.toml is {address!r}; give an address such as "
            "https://github.com/OWNER/NAME, or nothing"
        )
    return address


def urls(address: str) -> dict[str, str]:
    """The links of the project on a package index."""
    if not address:
        return {}
    return {
        "Homepage": address,
        "Documentation": f"{address}/blob/main/docs/index.md",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def readable_anywhere(markdown: str, address: str) -> str:
    """A page of the repository's root without relative links."""

    def changed(part: re.Match[str]) -> str:
        if part["code"] or re.match(r"[a-z]+:", part["target"]):
            return part[0]
        end = part["end"] or ""
        if not address:
            return "" if part["image"] else part["text"] + end
        kind = "raw" if part["image"] else "blob"
        target = f"{address}/{kind}/main/{part['target']}"
        return f"{part['image']}[{part['text']}]({target}){end}"

    return PARTS.sub(changed, markdown)


class Metadata(MetadataHookInterface):
    """The fields that are dynamic; a class, for hatchling wants one."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets the README and the URLs."""
        root = Path(self.root)
        address = repository(root)
        page = (root / "README.md").read_text("utf-8")
        metadata["urls"] = urls(address)
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": readable_anywhere(page, address),
        }

"""What a package index shows, and that nothing names an address that is not known."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packages import needs

pytestmark = pytest.mark.slow
hatch_build = needs("hatch_build")

ROOT = Path(__file__).parents[2]
ADDRESS = "https://github.com/OWNER/NAME"
RELATIVE = re.compile(r"\]\((?![a-z]+:)")


def files() -> dict[str, str]:
    """The texts of the repository by their places, without what git ignores."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found = {}
    for name in listed.stdout.decode().splitlines():
        if (ROOT / name).is_file() and not name.startswith("shared/"):
            found[name] = (ROOT / name).read_bytes().decode("utf-8", "replace")
    return found


FILES = files()


def outside_of_code(markdown: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`]*`", "", markdown, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_the_readme_has_no_relative_link(address):
    readme = FILES["README.md"]
    assert len(RELATIVE.findall(outside_of_code(readme))) > 10
    shown = hatch_build.readable_anywhere(readme, address)
    assert not RELATIVE.findall(outside_of_code(shown))
    code = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
    assert code.findall(shown) == code.findall(readme)
    linked = re.findall(rf"{ADDRESS}/(?:blob|raw)/main/([^)#\s]+)", shown)
    assert bool(linked) == bool(address)
    assert all((ROOT / target).exists() for target in linked)


def test_urls_are_of_the_address():
    assert hatch_build.urls("") == {}
    urls = hatch_build.urls(ADDRESS)
    assert list(urls) == ["Homepage", "Documentation", "Changelog", "Issues"]
    for url in urls.values():
        address, _, target = url.partition("/blob/main/")
        assert address.startswith(ADDRESS)
        assert (ROOT / target).exists()


def project(folder: Path, address: str) -> Path:
    """What metadata are made of, with another address."""
    for name in ("README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, folder)
    setting = re.compile('^repository = ".*"$', re.MULTILINE)
    settings, found = setting.subn(f'repository = "{address}"', FILES["pyproject.toml"])
    assert found == 1
    (folder / "pyproject.toml").write_text(settings)
    return folder


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_metadata_are_of_the_setting(address, tmp_path):
    command = [sys.executable, "-m", "hatchling", "metadata"]
    here = project(tmp_path, address)
    ran = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    metadata = json.loads(ran.stdout)
    assert metadata.get("urls", {}) == hatch_build.urls(address)
    readme = hatch_build.readable_anywhere(FILES["README.md"], address)
    assert metadata["readme"] == {"content-type": "text/markdown", "text": readme}


# Written so that this file does not have them: an address that was made up, and a
# package that no index has.
FORBIDDEN = (
    "github[.]com/fedjax[-_]muon",
    r"pip install\s+(?:-\S+\s+)*[\"']?fedjax[-_]muon",
)


def test_nothing_is_where_it_is_not():
    assert len(FILES) > 300
    forbidden = re.compile("|".join(FORBIDDEN)).search
    assert [name for name, text in FILES.items() if forbidden(text)] == []

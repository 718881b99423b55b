"""Bounds of versions: what is refused at import, and that the metadata says them."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import fedjax_muon
from fedjax_muon import versions
from tests.support.cases import slow_but

pytestmark = pytest.mark.portable

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
COMMAND = [sys.executable, "-c"]


@pytest.fixture
def installed(monkeypatch):
    """Pretends that some packages have other versions; None is not installed."""

    def pretend(**found):
        version = lambda name, real=versions._version: found.get(name, real(name))
        monkeypatch.setattr(versions, "_version", version)

    return pretend


def test_the_bounds_are_those_of_the_project():
    names = versions.requirements()
    assert names.keys() >= {"jax", "jaxlib", "flax", "optax", "chex"}
    assert names.keys() >= {"orbax-checkpoint", "tensorflow-datasets"}
    for line in PROJECT["project"]["dependencies"]:
        found = versions.Requirement(line)
        assert str(names[found.name].specifier) == str(found.specifier)


def test_what_is_installed_here_is_allowed(installed):
    versions.check_versions()
    installed(jax="0.12.0")
    versions.check_versions()


SAID = 'tested is <0.13,>=0.10.2; {}run: pip install "jax<0.13,>=0.10.2"'


@pytest.mark.parametrize("version", ["0.10.1", "0.9", None])
def test_an_old_version_is_refused_in_one_line(installed, version):
    installed(jax=version)
    with pytest.raises(ImportError) as error:
        versions.check_versions()
    assert str(error.value) == (
        f"fedjax-muon {fedjax_muon.__version__}: jax is {version or 'not installed'}, "
        + SAID.format("")
    )


@pytest.mark.parametrize("version", ["0.13.0", "1.0.0"])
def test_a_newer_version_warns(installed, version):
    installed(jax=version)
    with pytest.warns(UserWarning, match=version) as seen:
        versions.check_versions()
    assert str(seen[0].message) == (
        f"fedjax-muon {fedjax_muon.__version__}: jax is {version}, "
        + SAID.format("if something fails, ")
    )
    installed(jax=version, optax="0.1")  # the error alone is enough then
    with pytest.raises(ImportError, match=r"^[^;]*: optax is 0\.1, "):
        versions.check_versions()


WRONG = """
import sys
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "0.9.9" if name == "jax" else real(name)
"""


@pytest.mark.slow
def test_the_command_ends_with_one_line_and_an_import_with_an_error():
    quiet = {"capture_output": True, "text": True}
    run = lambda script: subprocess.run([*COMMAND, WRONG + script], **quiet)
    done = run("sys.argv = ['/bin/fedjax-muon', '--help']; import fedjax_muon.cli.main")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedjax-muon: error: fedjax-muon 0.1.0: jax is 0.9.9, ")
    done = run("import fedjax_muon")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: fedjax-muon 0.1.0: jax is 0.9.9, ")


def test_a_checkout_that_is_not_installed_is_not_checked(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(versions.metadata, "requires", absent)
    versions.check_versions()
    assert versions.install_command("chex") == 'pip install "chex"'


HEAVY = "sklearn matplotlib orbax tensorstore scipy networkx flax tensorflow_datasets"
SCRIPTS = [
    ("import fedjax_muon", f"{HEAVY} jax optax chex numpy"),
    ("from fedjax_muon.cli.main import main; main(['--help'])", HEAVY),
    ("import fedjax_muon as fm; fm.federate", "scipy matplotlib orbax"),
]


@pytest.mark.parametrize(("script", "absent"), slow_but(1, SCRIPTS))
def test_nothing_slow_is_imported_before_it_is_needed(script, absent):
    body = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {script}"
    done = subprocess.run([*COMMAND, body], capture_output=True, text=True, check=True)
    assert not set(absent.split()) & set(done.stdout.split())

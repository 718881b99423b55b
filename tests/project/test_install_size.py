"""Sizes of installed packages, and what the script refuses."""

from importlib import metadata

import pytest

from benchmarks import install_size

pytestmark = pytest.mark.slow


def test_the_table_has_every_required_package_and_a_total():
    lines = install_size.table(install_size.USED_FOR)
    for name in install_size.required(install_size.PACKAGE):
        assert sum(line.startswith(f"| {name} |") for line in lines) == 1
    assert "jaxlib" in lines[2]  # the largest of all


def test_a_package_without_a_use_is_refused():
    used = {k: v for k, v in install_size.USED_FOR.items() if k != "chex"}
    with pytest.raises(ValueError, match="no entry for chex in USED_FOR"):
        install_size.table(used)


def test_a_package_without_a_record_is_refused(monkeypatch):
    monkeypatch.setattr(metadata, "files", lambda name: None)
    with pytest.raises(ValueError, match="chex has no record of its files; install"):
        install_size.size("chex")

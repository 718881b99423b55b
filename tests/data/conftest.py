"""Folders in which tests write files of data sets."""

import pytest

from fedjax_muon.data import names


@pytest.fixture(autouse=True)
def no_data_directory(request, monkeypatch):
    """Files are read from where a test says alone, but for those on published files."""
    if "real" not in request.node.name:
        monkeypatch.delenv(names.DATA_DIR_VARIABLE, raising=False)


@pytest.fixture
def place(tmp_path):
    """A folder in which a test writes files of one kind."""
    (tmp_path / "files").mkdir()
    return tmp_path / "files"

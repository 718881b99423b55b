"""Folders in which tests write files of datasets."""

import pytest

from fedjax_muon import data
from fedjax_muon.data import loading
from tests.support.published import allow_small


@pytest.fixture
def no_data_directory(monkeypatch):
    """Files are read from where a test says alone."""
    monkeypatch.delenv(loading.DATA_DIR_VARIABLE, raising=False)


@pytest.fixture
def small_files(no_data_directory, monkeypatch):
    """They may also be smaller than what was published."""
    allow_small(monkeypatch, *data.NAMES)


@pytest.fixture
def place(tmp_path):
    """A folder in which a test writes files of one kind."""
    (tmp_path / "files").mkdir()
    return tmp_path / "files"

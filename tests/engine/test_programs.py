"""Compiled programs that the next process finds."""

import jax
import pytest

import fedjax_muon as fm

NAME = "jax_compilation_cache_dir"


@pytest.fixture(autouse=True)
def without_a_cache():
    before = getattr(jax.config, NAME)
    jax.config.update(NAME, None)
    yield
    jax.config.update(NAME, before)


def test_programs_are_kept_in_the_first_place_that_is_said(tmp_path):
    for name in ("first", "second"):
        fm.cache_programs(tmp_path / name)
        assert getattr(jax.config, NAME) == str(tmp_path / "first")
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_without_a_place_there_is_a_warning_and_no_cache(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="compiled programs are not kept"):
        fm.cache_programs(tmp_path / "file" / "programs")
    assert getattr(jax.config, NAME) is None

"""Errors of one line, which say what is wrong, and where."""

import contextlib

import pytest


@contextlib.contextmanager
def one_line(message, *named, error=ValueError):
    """The block ends in such an error, whose text also has these words or paths."""
    with pytest.raises(error, match=message) as caught:
        yield
    text = str(caught.value)
    assert "\n" not in text
    for word in named:
        assert str(word) in text


def refused_with(words, call):
    """A call without arguments is refused in one line that has these words."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def refused(said, call, *args, error=ValueError, **given):
    """A call is refused in one line."""
    with one_line(said, error=error):
        call(*args, **given)

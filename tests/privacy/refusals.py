"""Refusals in one line."""

import pytest


def refused(said, call, *args, error=ValueError, **given):
    with pytest.raises(error, match=said) as found:
        call(*args, **given)
    assert "\n" not in str(found.value)

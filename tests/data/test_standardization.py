"""Mean and standard deviation that a data set remembers."""

import numpy as np
import pytest

from fedjax_muon import data
from fedjax_muon.data import Standardization, check_standardization

RNG = np.random.default_rng(0)
X = RNG.normal(3, 2, size=(30, 4)).astype(np.float32)
Y = [0, 1, 1] * 10


@pytest.mark.parametrize(
    "x", [X, X.astype(np.float64), RNG.integers(0, 255, (30, 5, 5, 3), np.uint8)]
)
def test_new_inputs_get_the_form_of_the_test_examples(x):
    dataset = data.from_arrays(x, Y, test=(x[:7], Y[:7]))
    np.testing.assert_array_equal(dataset.standardization.apply(x[:7]), dataset.x_test)
    np.testing.assert_array_equal(dataset.standardization.apply(x), dataset.x_train)
    axes = tuple(range(x.ndim - 1))
    mean, std = x.mean(axes, np.float64), x.std(axes, np.float64)
    np.testing.assert_allclose(dataset.standardization.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(dataset.standardization.std, std, rtol=1e-6)


def test_pixels_of_a_named_set_are_standardized_by_it():
    digits, raw = data.load("digits"), data.names.read("digits")
    found = digits.standardization.apply(raw.x_test)
    np.testing.assert_array_equal(found, digits.x_test)
    rest, _ = data.hold_out(digits, 0.1)
    assert rest.standardization is digits.standardization


def test_two_standardizations_become_one():
    once = data.from_arrays(X, Y, test=(X[:7], Y[:7]))
    half = data.dataset.subset(once, np.arange(9))
    twice = data.standardize(half)
    np.testing.assert_allclose(twice.standardization.apply(X[:7]), twice.x_test, 1e-4)
    assert abs(twice.standardization.mean - once.standardization.mean).max() > 0.01


def test_texts_have_none():
    ids = data.from_arrays(np.arange(40).reshape(10, 4), [0, 1] * 5, text=True)
    assert ids.standardization is None


@pytest.mark.parametrize("x", [X[:, :3], np.float32(1), np.array(["a"] * 4)])
def test_inputs_of_another_form_are_rejected(x):
    dataset = data.from_arrays(X, Y)
    with pytest.raises(ValueError, match=r"x must be numbers \[\.\.\., 4\], got "):
        dataset.standardization.apply(x)


ONE = Standardization(np.float32([1, 2]), np.float32([3, 4]))


@pytest.mark.parametrize(
    ("saved", "loaded", "said"),
    [
        (ONE, None, "trained on standardized inputs, and the data set is not standard"),
        (None, ONE, "not trained on standardized inputs, and the data set is st"),
        (ONE, Standardization(ONE.mean[:1], ONE.std[:1]), "2 channels, .* has 1;"),
        (ONE, ONE._replace(mean=np.float32([1, 2.01])), "mean of channel 1 is 2 in th"),
        (ONE, ONE._replace(std=np.float32([3.1, 4])), "std of channel 0 is 3 in the m"),
    ],
)
def test_another_normalization_is_named(saved, loaded, said):
    with pytest.raises(ValueError, match=f"other normalization at load: .*{said}"):
        check_standardization(saved, loaded)


def test_rounding_is_no_other_normalization():
    near = Standardization(ONE.mean * np.float32(1 + 1e-6), ONE.std)
    check_standardization(ONE, near)
    check_standardization(None, None)

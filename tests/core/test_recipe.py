"""Recipes: what made an algorithm, and the same algorithm with other numbers."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon import (
    algorithms,
    compression,
    decentralized,
    engine,
    minimax,
    transforms,
)
from fedjax_muon.algorithms import fedavg, fedmuon, fedmuon_align, scaffold
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    broadcast_state,
    no_client_state,
    numbers_of,
    recorded,
    with_numbers,
)
from fedjax_muon.core.hyperparameters import plain, several
from fedjax_muon.core.pair import Pair
from fedjax_muon.core.recipe import Recipe, as_arrays, in_words, recipe_of, short
from fedjax_muon.engine import plans
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.wrappers.compression import compress
from tests.oracles.cases import PARTIAL, X
from tests.oracles.saddle_cases import PARTIAL as SADDLE, START
from tests.support.saddle import OBJECTIVE
from tests.support.traces import TOY, compilations, farthest, path, stack

METHODS = {**algorithms.ALL, **minimax.ALL, **decentralized.ALL}


def undecorated(lr: Hyper = 0.1) -> Algorithm:
    """FedAvg's step at the server, by someone who knows no recipes."""

    def client(objective, broadcast, client_state, batches, round):
        return objective.grad(broadcast, None, round.key), client_state

    server = lambda state, mean, round: state - lr * mean
    exchange = Exchange(broadcast_state, client, server)
    return Algorithm(lambda params: params, no_client_state, (exchange,))


def wrapped(**hyper):
    """Two wrappers about an algorithm."""
    inner = compress(fedmuon(**hyper), compression.top_k(0.5), fields=("momentum",))
    limits: Any = {"clip_norm": 1.0, "noise_multiplier": 0.5, "clients": 5, "cohort": 3}
    return private_clients(inner, **limits)


def known(algorithm) -> Recipe:
    """The recipe of an algorithm that has one."""
    recipe = recipe_of(algorithm)
    assert recipe is not None
    return recipe


# --------------------------------------------------------------------- what is in them
def test_every_method_knows_its_numbers_and_is_made_again():
    for name, method in METHODS.items():
        algorithm = method.function()
        numbers = numbers_of(algorithm)
        assert known(algorithm).function is method.function, name
        assert "lr" in numbers, name
        halved = {key: jax.tree.map(lambda x: x / 2, v) for key, v in numbers.items()}
        again = with_numbers(algorithm, halved)
        assert numbers_of(again) == halved, name
        assert known(again).function is method.function, name
        assert numbers_of(algorithm) == numbers, name  # which is as it was


def test_numbers_are_what_was_given_or_the_defaults():
    assert numbers_of(fedavg()) == {"lr": 0.1, "server_lr": 1.0}
    assert numbers_of(fedavg(0.3)) == {"lr": 0.3, "server_lr": 1.0}
    assert numbers_of(scaffold(server_lr=2, lr=0.5)) == {"lr": 0.5, "server_lr": 2}
    assert numbers_of(fedmuon(momentum=jnp.float32(0.5)))["momentum"] == 0.5
    muloco = algorithms.muloco(momentum=0.8)  # the preset's own, not DiLoCo's
    rates = {"lr": 0.0224, "server_lr": 0.8, "decay": 0.0, "b2": 0.99}
    assert numbers_of(muloco) == rates | {"momentum": 0.8, "server_momentum": 0.9}


def test_a_schedule_is_no_number_but_may_be_replaced_by_one():
    algorithm = fedavg(lr=lambda index: 0.1 / (1 + index))
    assert numbers_of(algorithm) == {"server_lr": 1.0}
    assert numbers_of(algorithms.scaffold_m()).keys() == {"lr", "server_lr"}
    one_scheduled = fedavg(lr=Pair(0.1, lambda index: 0.2))
    assert "lr" not in numbers_of(one_scheduled)
    assert numbers_of(with_numbers(algorithm, {"lr": 0.2}))["lr"] == 0.2
    # what is not named stays what it was
    kept = with_numbers(algorithm, {"server_lr": 0.5})
    assert numbers_of(kept) == {"server_lr": 0.5}
    want = path(fedavg(lr=lambda index: 0.1 / (1 + index), server_lr=0.5), X, PARTIAL)
    assert farthest(path(kept, X, PARTIAL), want) == 0


def test_numbers_that_may_not_be_schedules_are_numbers_flags_and_rules_are_none():
    options = {"rule": optax.trace(0.9), "averaged_state": ("trace",)}
    assert numbers_of(fedavg(**options)).keys() == {"lr", "server_lr"}
    assert numbers_of(fedmuon(synced=False)).keys() == {"lr", "momentum"}
    fixed = numbers_of(algorithms.fedlada()).keys() - {"lr", "server_lr", "amend"}
    assert fixed == {"b1", "b2", "eps"}
    assert numbers_of(algorithms.fafed(beta=0.5))["beta"] == 0.5
    changed = with_numbers(METHODS["fedsgda_clip"].function(), {"clip_norm": 2.0})
    assert numbers_of(changed)["clip_norm"] == 2.0


@pytest.mark.slow
def test_pairs_are_numbers_of_two_variables():
    rates = Pair(0.05, 0.15)
    algorithm = METHODS["local_sgda"].function(lr=rates)
    assert numbers_of(algorithm) == {"lr": rates, "server_lr": 1.0}
    other = with_numbers(algorithm, {"lr": Pair(0.1, 0.01), "server_lr": Pair(1, 0.5)})
    assert numbers_of(other) == {"lr": Pair(0.1, 0.01), "server_lr": Pair(1, 0.5)}
    start = Pair(START["x"], START["y"])
    wanted = METHODS["local_sgda"].function(lr=Pair(0.1, 0.01), server_lr=Pair(1, 0.5))
    found = [path(one, start, SADDLE, objective=OBJECTIVE) for one in (other, wanted)]
    jax.tree.map(np.testing.assert_array_equal, *found)
    # one value for both variables, and back
    assert numbers_of(with_numbers(algorithm, {"lr": 0.3}))["lr"] == 0.3
    arrays = as_arrays(numbers_of(algorithm))
    assert isinstance(arrays["lr"], Pair)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(arrays))


# ------------------------------------------------------------------------- wrappers
def test_numbers_of_what_is_wrapped_are_among_them():
    algorithm = compress(fedavg(lr=0.3), compression.top_k(0.5))
    assert numbers_of(algorithm) == {"lr": 0.3, "server_lr": 1.0}
    assert numbers_of(wrapped(lr=0.2)) == {"lr": 0.2, "momentum": 0.9}
    changed = with_numbers(wrapped(lr=0.2), {"momentum": 0.5})
    assert numbers_of(changed) == {"lr": 0.2, "momentum": 0.5}
    said = r"^private_clients has no hyperparameter 'mu'; it has lr, momentum$"
    with pytest.raises(ValueError, match=said):
        with_numbers(wrapped(), {"mu": 0.5})


@pytest.mark.slow
def test_wrappers_are_put_on_again():
    compressor = compression.top_k(0.5)
    made = compress(fedavg(lr=0.3), compressor, feedback=1.0)
    other = with_numbers(made, {"lr": 0.1})
    want = path(compress(fedavg(lr=0.1), compressor, feedback=1.0), X, PARTIAL)
    assert farthest(path(other, X, PARTIAL), want) == 0
    assert farthest(path(made, X, PARTIAL), want) > 1e-3
    assert farthest(path(fedavg(lr=0.1), X, PARTIAL), want) > 1e-3


# ----------------------------------------------------- numbers as programs' arguments
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fedmuon_align(decay=0.1), wrapped()])
def test_one_program_for_all_numbers(algorithm):
    """Traced numbers give what constants give, and nothing is compiled again."""
    ids, data = PARTIAL.rounds[0]
    cast = lambda t: jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), t)
    cohort, batches, key = jnp.array(ids), cast(stack(data)), jax.random.key(0)

    @jax.jit
    def end(numbers):
        with_them = with_numbers(algorithm, numbers)
        state = engine.init(with_them, cast(X), 5)
        round = engine.make_round(with_them, TOY, 5, plans.mapped)
        return round(state, cohort, batches, jnp.ones(3), key)[0].server.params

    for lr in (0.05, 0.01):
        numbers = {**numbers_of(algorithm), "lr": lr}
        alone = with_numbers(algorithm, {"lr": lr})
        state = engine.init(alone, cast(X), 5)
        round = jax.jit(engine.make_round(alone, TOY, 5, plans.mapped))
        want = round(state, cohort, batches, jnp.ones(3), key)[0].server.params
        found = end(as_arrays(numbers))
        close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
        jax.tree.map(close, found, want)
    assert compilations(end) == 1


def test_presets_hand_traced_numbers_on():
    """Every number of every method may be traced: none is compared or formatted."""
    for name, method in METHODS.items():
        algorithm = method.function()
        make = lambda numbers, algorithm=algorithm: (
            with_numbers(algorithm, numbers) and jnp.zeros(())
        )
        jax.eval_shape(make, as_arrays(numbers_of(algorithm))), name


# ------------------------------------------------------------------------- refusals


def test_what_was_changed_since_is_no_longer_its_recipe():
    algorithm = fedavg(lr=0.2)
    same = algorithm._replace(uniform_weights=False)  # as it was
    assert numbers_of(same) == numbers_of(algorithm)
    changed = algorithm._replace(uniform_weights=True)
    assert recipe_of(changed) is None
    assert numbers_of(changed) == {}
    with pytest.raises(ValueError, match=r"^this algorithm does not record the func"):
        with_numbers(changed, {"lr": 0.1})
    # neither inside of a wrapper, whose own numbers remain
    assert numbers_of(compress(changed, compression.no_compression())) == {}


def test_undecorated_algorithms_refuse_in_one_line():
    algorithm = undecorated()
    assert recipe_of(algorithm) is None
    assert numbers_of(algorithm) == {}
    assert with_numbers(algorithm, {}) is algorithm
    with pytest.raises(ValueError, match="decorate that function") as caught:
        with_numbers(algorithm, {"lr": 0.5})
    (line,) = str(caught.value).splitlines()
    assert "`recorded`" in line
    now = recorded(undecorated)
    assert numbers_of(now()) == {"lr": 0.1}
    assert numbers_of(with_numbers(now(0.2), {"lr": 0.5})) == {"lr": 0.5}


def test_every_method_takes_schedules_by_name():
    """Presets hand them on by name too."""
    schedule = lambda index: 0.1 / (1 + index)
    for name, method in METHODS.items():
        algorithm = method.function(lr=schedule)
        assert known(algorithm).arguments["lr"] is schedule, name
        assert "lr" not in numbers_of(algorithm), name
        assert numbers_of(with_numbers(algorithm, {"lr": 0.2}))["lr"] == 0.2, name


# ---------------------------------------------------------------------------- in words
class Hostile:
    def __repr__(self):
        raise RuntimeError("no text")

    def __call__(self):
        return self

    def __getattr__(self, name):
        raise KeyError(name)


def itself(self=None):
    return lambda: (self, itself_again)


itself_again = [partial(itself)]
itself_again.append(itself_again)


def recursive():
    def again(steps):
        return again(steps - 1) if steps else unset

    if again is None:
        unset = 1
    return again


STRANGE = {
    "empty cell": (optax.exponential_decay(0.1, 10, 0.5), "[empty, 0.5"),
    "itself": (
        recursive(),
        "recursive.<locals>.again[tests.core.test_recipe.recursive",
    ),
    "list of itself": (itself_again, "test_recipe.itself(), builtins.list)"),
    "closure of both": (itself(itself_again), "builtins.list"),
    "no text": (Hostile(), "test_recipe.Hostile"),
    "no text inside": (partial(itself, a=[Hostile()]), "test_recipe.Hostile))"),
    "key": (itself(jax.random.key(7)), "[(0, 7)]"),
    "objects": (np.array([{"b", "a"}] * 100), "({'a', 'b'}, {'a', 'b'}, "),
    "set": ({"b", "a", "c"}, "{'a', 'b', 'c'}"),
    "schedule": (optax.join_schedules([optax.constant_schedule(0.1)], []), "0.1"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_texts_of_arguments_never_raise(kind):
    value, text = STRANGE[kind]
    assert text in in_words(value)
    assert in_words((value,)) == f"({in_words(value)})"
    assert " at 0x" not in in_words(value)


def test_rules_are_named_by_the_function_that_made_them():
    """Also those that optax wraps: `stateless` is the name of the wrapper."""
    extended = optax.with_extra_args_support(optax.scale(2.0))
    names = {
        "normalize": transforms.normalize(),
        "orthogonalize": transforms.orthogonalize(),
        "scale_by_lmo": transforms.scale_by_lmo(jnp.sign),
        "identity": optax.identity(),
        "scale": extended,
        "scale_by_adam": optax.scale_by_adam(),
    }
    assert {name: short(rule) for name, rule in names.items()} == {n: n for n in names}


KINDS = (np.float64, np.float32, jnp.float32, jnp.bfloat16, np.array, jnp.asarray)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_numpy_and_jax_are_pythons(kind):
    made = fedavg(lr=kind(0.125))
    assert repr(made) == repr(fedavg(lr=0.125))
    assert numbers_of(made) == numbers_of(fedavg(lr=0.125))
    assert type(numbers_of(made)["lr"]) is float
    assert in_words(kind(0.125)) == "0.125"


def test_what_is_no_single_number_stays():
    key, array = jax.random.key(0), np.arange(2)
    pair = Pair(np.float32(0.5), 1)
    assert plain(pair) == Pair(0.5, 1)
    assert isinstance(plain(pair), Pair)
    for value in (key, array, "1", None, (key,), (1, "a"), [np.int64(1)]):
        assert plain(value) is value
    assert [plain(x) for x in (np.bool_(True), np.int64(3))] == [True, 3]
    assert several(np.arange(2)) == several(x for x in (0, 1)) == (0, 1)
    assert [several(x) for x in ("01", 3, np.array(2.0))] == ["01", 3, 2.0]
    jax.jit(lambda x: fedavg(lr=plain(x)) and x)(1.0)  # a tracer stays one

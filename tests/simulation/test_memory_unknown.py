"""Estimates of memory that cannot be made: one warning, and the run goes on."""

from types import SimpleNamespace

import federation
import jax
import jax.extend
import jax.numpy as jnp
import pytest

from fedjax_muon.cli import main
from fedjax_muon.simulation import memory, memory_check
from fedjax_muon.simulation.memory import UnknownMemoryError
from fedjax_muon.simulation.memory_check import check_memory

pytestmark = pytest.mark.portable


def unreadable(number):
    """A scan in a form of no JAX that there is: with parameters of other names, without
    a program, or of an operation that nobody knows."""
    traced = jax.jit(lambda x: jax.lax.scan(lambda c, _: (c * 2, ()), x, length=3)[0])
    program = traced.trace(jnp.zeros(250)).jaxpr
    (eqn,) = program.jaxpr.eqns
    other = (
        {"params": {"reverse": False}},
        {"params": {"jaxpr": eqn.params["jaxpr"], "more": eqn.params["jaxpr"]}},
        {"primitive": jax.extend.core.Primitive("swirl")},
    )[number]
    return SimpleNamespace(
        jaxpr=SimpleNamespace(
            invars=program.jaxpr.invars,
            constvars=(),
            outvars=program.jaxpr.outvars,
            eqns=[eqn.replace(**other)],
        )
    )


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (0, r"jax [0-9.]+ describes programs in an unknown form \(ValueError: "),
        (1, r"jax [0-9.]+ describes programs in an unknown form \(ValueError: "),
        (2, "the operation swirl is unknown"),
    ],
)
def test_a_program_in_an_unknown_form_has_an_unknown_estimate(number, message):
    with pytest.raises(UnknownMemoryError, match=message):
        memory.peak_bytes(unreadable(number))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_what_is_unknown_stops_no_run(monkeypatch, capsys, tmp_path):
    def unknown(program, donated=()):
        return memory._peak(unreadable(2).jaxpr, donated)

    monkeypatch.setattr(memory_check, "peak_bytes", unknown)
    with pytest.warns(UserWarning, match="^memory not checked: the operation swirl"):
        check_memory(federation.federation())
    short = ["--rounds", "1", "--model", "mlp", "--hidden", "4", "--cohort-size", "1"]
    out = tmp_path / "out"
    main(["train", "--algorithm", "fedavg", *short, "--output", str(out)])
    said = capsys.readouterr().err.splitlines()
    line = "fedjax-muon: warning: memory not checked: the operation swirl is unknown"
    assert said.count(line) == 1  # beside what other packages warn of
    assert len((out / "metrics.csv").read_text().splitlines()) == 3
    grid = ["--grid", "lr=0.1", "--seeds", "1", "--output", str(tmp_path / "grid")]
    main(["sweep", "--algorithms", "fedavg", *grid, *short])
    assert "memory not checked, one cell at a time: " in capsys.readouterr().err

"""What the drawings of the documentation say is what the code does."""

import jax
import numpy as np
import pytest

import fedjax_muon as fm
from experiments import diagrams


@pytest.mark.parametrize("family", diagrams.FAMILIES)
def test_messages_have_the_sizes_that_are_drawn(family):
    problem = fm.problems.classification()
    plain = fm.simulate(fm.fedavg(), problem).meter.bytes_after(1).down
    for name, label in family.names.items():
        method = fm.algorithms.ALL[name]
        assert method.label == label
        meter = fm.simulate(method.function(), problem).meter
        before, after = meter.bytes_after(1), meter.bytes_after(2)
        for way, parts in (("down", family.down), ("up", family.up)):
            sent = (getattr(after, way) - getattr(before, way)) / plain
            # some momenta are of matrices alone, which are 98% of this model
            assert sent == pytest.approx(sum(parts.values()), rel=0.02)


def test_late_messages_arrive_as_in_a_simulation():
    problem = fm.problems.classification(clients=4, divide=fm.partition.iid)
    seconds = list(diagrams.SECONDS.values())
    clock = fm.clocks.measured(np.array(seconds), np.zeros(4))
    cohort = fm.buffered(4, diagrams.BUFFER, clock)
    how = {"cohort": cohort, "local_steps": 1}
    simulation = fm.simulate(fm.fedavg(), problem, **how)
    state = simulation.init(jax.random.key(0))
    _, rows = fm.run(simulation, state, rounds=4, evaluate_every=1)
    done, times = diagrams.jobs(diagrams.SECONDS, 4)
    np.testing.assert_allclose([row["virtual_seconds"] for row in rows][-4:], times)
    assert max(job.staleness for job in done) == 3
    # a synchronous round takes as long as these four steps
    assert times[-1] == pytest.approx(max(seconds))

"""What would shorten a run, said before it begins."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import jax

from fedjax_muon.core import tree
from fedjax_muon.engine.plans import mapped
from fedjax_muon.runs.rates import Unsearched
from fedjax_muon.simulation.simulation import Simulation

# clients whose prologue may be long; seconds worth a line; operations per second of two
# cores of an AMD EPYC, for a small CNN
MANY, LONG, SPEED = 100, 5, 6e10
LARGE = 2**24  # bytes of parameters from which huge pages are worth a line
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def hints(simulation: Simulation) -> Iterator[str]:
    """What would shorten a run on a CPU; nothing of short ones."""
    if jax.default_backend() == "cpu":
        yield from _long_prologue(simulation)
        yield from _huge_pages(tree.nbytes(simulation.like.params))


def rate_words(name: str, known: Unsearched, simulation: Simulation) -> str:
    """What is known of a rate that nobody searched, in a run."""
    words = (
        f"without lr, {name}'s rate falls from {known.rate.lr:g} to 0 by a cosine; a "
        f"search gained {known.gains}"
    )
    setup = simulation.settings
    most = setup.work.bound(int(simulation.clients.size.max()), setup.batch_size)
    sizes = {
        "clients per round": (setup.cohort.size, known.cohort),
        "local step" + "s" * (most > 1): (most, known.local_steps),
    }
    outside = [
        f"{size} {what} (measured: {low} to {high})"
        for what, (size, (low, high)) in sizes.items()
        if not low <= size <= high
    ]
    outside += ["privacy (not measured)"] if setup.privacy is not None else []
    if outside:
        words += f"; this run has {', '.join(outside)}, so search lr with sweep"
    return words


def _long_prologue(simulation: Simulation) -> Iterator[str]:
    """The time is XLA's count of operations over a measured speed of CPUs."""
    setup = simulation.settings
    if getattr(setup, "plan", None) is not mapped or not setup.algorithm.prologue:
        return
    asked, size = setup.cohort.prologue or setup.num_clients, setup.cohort.size
    if asked < MANY:
        return
    costs = simulation.traced_begin.lower().cost_analysis() or {}
    seconds = asked * costs.get("flops", 0.0) / SPEED  # the loop's body counts once
    if seconds >= LONG:
        yield (
            f"before round 0, {asked:,} clients compute a gradient each, for more than "
            f"{LONG} s; cohort=fm.sampled({size}, prologue=200) asks fewer"
        )


def _huge_pages(nbytes: int, enabled: str = HUGE_PAGES) -> Iterator[str]:
    """glibc asks for them if it is told to, and Linux gives them to who asks."""
    told = "hugetlb" in os.environ.get("GLIBC_TUNABLES", "")
    if nbytes < LARGE or told or platform.libc_ver()[0] != "glibc":
        return
    place = Path(enabled)
    if place.exists() and "[madvise]" in place.read_text("utf-8"):
        yield (
            "large models can train faster in huge pages (7% for ViT-Tiny); before "
            "you start Python, set GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
        )

"""The forms of a convolution on CPUs, with their gradients, and which one is chosen.

The convolutions of ResNet-18 with batches of 50, of the CNNs, and some at the limits of
the rule. Each runs three times in a scan, as in the loop over local steps.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.newton_schulz import in_turns
from fedjax_muon.models import convolution

TIMES = 3
FORMS = {
    "canonical": convolution.canonical_form,
    "products": convolution.products_form,
    "winograd": convolution.winograd_form,
}


class Case(NamedTuple):
    """A square convolution that pads to keep the places, or not."""

    batch: int
    places: int
    inputs: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    pads: bool = True

    def __str__(self) -> str:
        data = f"{self.batch} x {self.places} x {self.places} x {self.inputs}"
        kernel = f"{self.kernel} x {self.kernel}, {self.outputs} channels"
        stride = f", stride {self.stride}" * (self.stride > 1)
        return f"{data}, {kernel}{stride}" + ", no padding" * (not self.pads)


CASES = (
    Case(50, 32, 64, 64),
    Case(50, 16, 128, 128),
    Case(50, 8, 256, 256),
    Case(50, 4, 512, 512),
    Case(50, 32, 64, 128, stride=2),
    Case(50, 16, 128, 256, stride=2),
    Case(50, 8, 256, 512, stride=2),
    Case(50, 32, 64, 128, kernel=1, stride=2),
    Case(50, 8, 256, 512, kernel=1, stride=2),
    Case(20, 26, 32, 64, pads=False),
    Case(10, 32, 32, 32),
    Case(10, 16, 64, 64),
    Case(10, 8, 256, 256),
)


def gradient_steps(case: Case, form: convolution.Form) -> Callable[[], Any]:
    """Returns a jitted function that steps along the gradients of data and kernel."""
    space = (case.places, case.places)
    x = jax.random.normal(jax.random.key(0), (case.batch, *space, case.inputs))
    w = jax.random.normal(
        jax.random.key(1), (case.kernel, case.kernel, case.inputs, case.outputs)
    )

    def step(state: Any, _: None) -> Any:
        dx, dw = form.gradients(*state, form.value(*state))
        return (state[0] - 1e-9 * dx, state[1] - 1e-9 * dw), None

    run = jax.jit(lambda *state: lax.scan(step, state, length=TIMES)[0])
    return lambda: run(x, w)


def windows_of(case: Case) -> convolution.Windows:
    """Returns strides, padding and dilation."""
    pad = case.kernel // 2 if case.pads else 0
    return convolution.Windows(
        (case.stride, case.stride), ((pad, pad), (pad, pad)), (1, 1)
    )


def chosen_of(case: Case) -> str:
    """Returns the name of the form that the library chooses."""
    x = jnp.zeros((case.batch, case.places, case.places, case.inputs))
    w = jnp.zeros((case.kernel, case.kernel, case.inputs, case.outputs))
    chosen = convolution.chosen_form(x, w, windows_of(case))
    (name,) = [name for name, form in FORMS.items() if form is chosen]
    return name


def rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yields the time of each form for each case."""
    for case in CASES:
        fits = {"winograd": case.kernel == 3 and case.stride == 1}
        steps = {
            name: gradient_steps(case, form(windows_of(case), None))
            for name, form in FORMS.items()
            if fits.get(name, True)
        }
        chosen = chosen_of(case)
        for name, spent in in_turns(steps, repeats).items():
            about = {"case": str(case), "form": name, "chosen": name == chosen}
            yield about | {"jax": jax.__version__, "times": TIMES} | spent

"""Tokens per second of a local step of a GPT on one core, beside a loop in PyTorch.

Both take AdamW steps in float32 from the same weights, on the same batch. The library's
are a compiled scan, in a round of one client. The loop has the fused attention of
PyTorch, or two products and a softmax. The least CPU time counts.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
import torch
from flax.traverse_util import flatten_dict
from torch import nn

from benchmarks.newton_schulz import in_turns
from benchmarks.peers.torch_nets import carry
from benchmarks.peers.torch_tokens import ATTENTION, gpt
from fedjax_muon import algorithms, data, models, simulation, tasks

MODEL = models.GPT(256, context=128, width=128, depth=4, heads=4)
BATCH, STEPS = 16, 8  # windows, and local steps in a round
LR, DECAY = 0.001, 0.1
SAME = 1e-5  # nats that losses of the same weights may differ by


class Loop:
    """The local steps of a round in PyTorch."""

    def __init__(self, attention: str, weights: dict[str, np.ndarray], ids: np.ndarray):
        self._net, layers = gpt(MODEL, attention)
        carry(layers, weights)
        params = self._net.parameters()
        self._optimizer = torch.optim.AdamW(params, LR, weight_decay=DECAY, fused=True)
        self._ids = torch.from_numpy(ids).long()

    def loss(self) -> torch.Tensor:
        logits = self._net(self._ids[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, self._ids[:, 1:].flatten())

    def __call__(self) -> None:
        for _ in range(STEPS):
            self._optimizer.zero_grad()
            self.loss().backward()
            self._optimizer.step()


def rows(repeats: int) -> Iterator[dict[str, Any]]:
    """Yields the tokens per second of the library and of the loops.

    Raises:
      ValueError: If JAX does not run on a CPU, or if the losses differ.
    """
    if jax.default_backend() != "cpu":
        raise ValueError("gpt_step compares on a CPU; set JAX_PLATFORMS=cpu")
    torch.set_num_threads(1)
    shape, first = (BATCH, MODEL.context + 1), np.zeros(BATCH, np.int32)
    ids = np.random.default_rng(0).integers(0, MODEL.vocabulary, shape, np.int32)
    text = data.Dataset(ids, first, ids, first, ("random",), MODEL.vocabulary)
    task = tasks.language(MODEL, text)
    decayed = optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(DECAY))
    # of one client, with the mean as it is: plain training
    method = algorithms.diloco(
        LR, rule=decayed, server_lr=1.0, server_rule=optax.identity()
    )
    trained = simulation.federate(
        method,
        task,
        text,
        [np.arange(BATCH)],
        cohort=1,
        local_steps=STEPS,
        batch_size=BATCH,
    )
    state = trained.init(jax.random.key(0))
    weights = {k: np.array(w) for k, w in flatten_dict(state.params, sep="/").items()}

    def train_round() -> Any:
        nonlocal state
        state, _ = trained.train_round(state)
        return state.params

    loops = {f"PyTorch, {name}": Loop(name, weights, ids) for name in ATTENTION}

    def losses() -> dict[str, float]:
        own = {"fedjax_muon": float(trained.evaluate(state)["test_loss"])}
        return own | {name: loop.loss().item() for name, loop in loops.items()}

    begun = losses()
    if max(begun.values()) - min(begun.values()) > SAME:
        raise ValueError(f"the models must have the same loss at first, got {begun}")
    spent = in_turns({"fedjax_muon": train_round} | loops, repeats)
    ended, tokens = losses(), STEPS * BATCH * MODEL.context
    for name, row in spent.items():
        yield {
            "contender": name,
            "parameters": sum(w.size for w in weights.values()),
            "tokens": tokens,
            **row,
            "tokens_per_second": round(tokens / row["cpu_seconds_min"]),
            "loss": round(ended[name], 4),
        }

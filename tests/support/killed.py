"""A process to be killed: trains, saves after every round, and says what it does."""

import sys
from pathlib import Path

import federation
import jax

from fedjax_muon.simulation import checkpoint


def train(directory: Path, rounds: int, say=lambda word, round: None):
    """The state after `rounds`, from the newest checkpoint in `directory` on."""
    prepared = federation.federation()
    state = prepared.init(jax.random.key(0))
    mark = checkpoint.fingerprint({}, state)
    with checkpoint.open_checkpoints(directory) as checkpoints:
        found = checkpoint.restore(checkpoints, state, mark)
        state = state if found is None else found[0]
        say("starts", state.round)
        while state.round < rounds:
            state, _ = prepared.train_round(state)
            say("saves", state.round)
            checkpoint.save(checkpoints, state.round, state, mark)
            say("saved", state.round)
    return state


if __name__ == "__main__":
    say = lambda word, round: print(word, round, flush=True)
    train(Path(sys.argv[1]), int(sys.argv[2]), say)

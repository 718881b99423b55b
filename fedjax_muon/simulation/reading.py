"""Examples that stay on disk: those of a round are read while the one before runs.

Which examples a round reads depends on its number and on keys alone, never on
parameters. So a program draws their positions, the host reads them, and the round runs
as on a dataset that has nothing else, with the numbers of training in memory.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.data.dataset import OnDisk
from fedjax_muon.simulation.batching import Partition
from fedjax_muon.simulation.evaluation import scored_places
from fedjax_muon.simulation.program import Data, Run

MOST = 2**31  # bytes of the examples that one program reads
Arrays = tuple[Data, Run]  # arguments of programs


class FromDisk(NamedTuple):
    """The training examples of a simulation that stay on disk."""

    x: OnDisk  # [n, ...]
    y: np.ndarray  # int32 [n]

    def blank(self, arrays: Arrays, drawn: Any) -> tuple[Any, Any]:
        """The arguments of a program with room for the examples that `read` reads."""
        (data, run), (cohort, positions) = arrays, drawn
        room = len(cohort) * run.partition.max_size
        most = min(math.prod(positions.shape), room)
        size = most * math.prod(self.x.shape[1:]) * self.x.dtype.itemsize
        if size > MOST:
            raise ValueError(
                f"the batches of {len(cohort)} clients are up to {size / 1e9:.3g} GB "
                f"of examples on disk, above the limit of {MOST / 1e9:.3g}; ask fewer, "
                "as with cohort=fm.sampled(8, prologue=64), or take smaller batches"
            )
        zeros: Any = lambda size: np.zeros(size, np.int32)
        own = {"order": zeros(room), "start": zeros(len(run.partition.start))}
        partition = dataclasses.replace(run.partition, **own)
        x: Any = np.zeros((most, *self.x.shape[1:]), self.x.dtype)
        data = data._replace(x=x, y=zeros(most), ids=zeros(most))
        return data, run._replace(partition=partition)

    def read(self, arrays: Arrays, drawn: Any) -> Arrays:
        """The arguments of a program, of all examples those that it reads.

        Args:
          drawn: From `rounds.drawn`. Each of these clients gets a segment of `order`,
            where only the entries at its positions are filled.
        """
        (data, run), (cohort, positions) = self.blank(arrays, drawn), drawn
        cohort, positions, whole = *map(np.asarray, drawn), arrays[1].partition
        first = np.arange(len(cohort)) * whole.max_size
        places = np.unique((first[:, None, None] + positions)[positions >= 0])
        member, position = np.divmod(places, whole.max_size)
        start, order = map(np.asarray, (whole.start, whole.order))
        ids = order[start[cohort[member]] + position]
        some = slice(len(ids))
        run.partition.order[places] = np.arange(len(ids))
        run.partition.start[cohort] = first
        data.x[some], data.y[some], data.ids[some] = self.x[ids], self.y[ids], ids
        return jax.device_put((data, run))

    def scored(self, data: Data, partition: Partition) -> tuple[Data, Partition]:
        """What evaluations take, of all training examples those that they score."""
        places = scored_places(data.task, len(partition.order))
        ids = np.asarray(partition.order)[places]
        order = jnp.zeros_like(partition.order).at[places].set(np.arange(len(ids)))
        x, y = jax.device_put((self.x[ids], self.y[ids]))
        return data._replace(x=x, y=y), dataclasses.replace(partition, order=order)

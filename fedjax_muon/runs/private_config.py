"""The config of `fedjax-muon private`."""

import dataclasses
from pathlib import Path
from typing import Literal

from fedjax_muon.runs.lists import Names, Numbers, Seeds, check_widths


@dataclasses.dataclass(frozen=True)
class Private:
    """Private decentralized methods at several epsilons and on several seeds."""

    methods: Names = ("dp_sgda", "dpmixsgd", "dpmixsgd_inside", "private_storm")
    """Private methods."""
    epsilons: Numbers = (1.0, 4.0)
    """What all iterations of a run together may cost one example of an agent."""
    delta: float = 1e-5
    """Below one over the examples of every agent."""
    dataset: str = "breast_cancer"
    """Data set of two classes, such as breast_cancer, a8a, a9a or ijcnn1."""
    data_dir: Path | None = None
    """Where its files are; by default the environment variable FEDJAX_MUON_DATA."""
    hidden: tuple[int, ...] = ()
    """Widths of the model's hidden layers."""
    agents: int = 5
    """Who divide the training examples, at random."""
    graph: Literal["erdos_renyi", "ring", "star", "exponential", "complete"] = (
        "erdos_renyi"
    )
    """Who talks to whom; mixed by Metropolis weights."""
    connectivity: float = 0.5
    """Probability of an edge of erdos_renyi, drawn until connected."""
    rounds: int = 200
    """Iterations after the first."""
    batch_size: int = 16
    """Examples in a batch; expected ones for methods that sample by Poisson."""
    clip_norm: float = 0.2
    """Norm that the gradient of an example is clipped to."""
    change_clip_norm: float = 0.02
    """Norm that its change between iterations is clipped to, by private_storm."""
    beta: float = 0.1
    """Weight of the fresh gradient in STORM."""
    bands: int = 4
    """Bands of the correlated noise of dp_ftrl, and groups of an agent's examples that
    take turns."""
    lr: dict[str, float] = dataclasses.field(default_factory=dict)
    """Learning rates, as `--lr dp_sgda 0.3`; the others are of the default job."""
    seeds: Seeds = (0, 1, 2)
    """Each seed has its own partition, graph and initial parameters. Batches and noise
    come from the operating system, anew for every run."""
    ledger: Path | None = None
    """File that records what runs on this data set cost together; by default one for
    every data set, in the user's data directory."""
    budget: float | None = None
    """Largest epsilon of all runs in the ledger together; a job that would exceed it is
    rejected."""
    publish_training_metrics: bool = False
    """Also record metrics of training examples, for which the guarantee is void."""
    insecure_fixed_noise: bool = False
    """Draw batches and noise from the seed, to reproduce a run; no privacy."""

    def __post_init__(self):
        check_widths("hidden", self.hidden)

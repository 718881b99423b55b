"""Tasks: initial parameters, a loss with its gradient, and scores."""

from fedjax_muon.tasks import lora
from fedjax_muon.tasks.adversarial import adversarial
from fedjax_muon.tasks.agnostic import agnostic
from fedjax_muon.tasks.auc import auc
from fedjax_muon.tasks.classification import (
    Examples,
    Logits,
    by_matthews,
    check_batch,
    check_model,
    classification,
    cross_entropy,
    from_logits,
    logits_of,
    starting_at,
    weighted_mean,
)
from fedjax_muon.tasks.language import language
from fedjax_muon.tasks.microbatches import microbatched
from fedjax_muon.tasks.regression import regression
from fedjax_muon.tasks.task import Batch, Metric, Scores, Task, as_argument, as_partial

__all__ = [
    "Batch",
    "Examples",
    "Logits",
    "Metric",
    "Scores",
    "Task",
    "adversarial",
    "agnostic",
    "as_argument",
    "as_partial",
    "auc",
    "by_matthews",
    "check_batch",
    "check_model",
    "classification",
    "cross_entropy",
    "from_logits",
    "language",
    "logits_of",
    "lora",
    "microbatched",
    "regression",
    "starting_at",
    "weighted_mean",
]

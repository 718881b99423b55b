"""Language modeling on texts."""

import os
from typing import Any

from fedjax_muon import tasks
from fedjax_muon.data import Dataset, from_text, partition
from fedjax_muon.data.token_windows import Short, Texts
from fedjax_muon.data.tokenizers import Tokenizer
from fedjax_muon.decentralized.topology import GraphOf
from fedjax_muon.problems.division import Divide, division_of
from fedjax_muon.problems.labeled import Graph, problem_of
from fedjax_muon.problems.networks import Model, gpt
from fedjax_muon.problems.problem import Problem, named


@named
def text(
    path: str | os.PathLike[str] | Texts | Dataset,
    *,
    clients: int = 4,
    divide: Divide | None = None,
    model: Model | None = None,
    window: int = 128,
    tokenizer: str | os.PathLike[str] | Tokenizer = "bytes",
    test_share: float = 0.1,
    short: Short = "refuse",
    microbatch: int | None = None,
    graph: Graph | GraphOf = "erdos_renyi",
) -> Problem:
    """Language modeling: prediction of every next token.

    Args:
      path: A text file; a directory of .txt files, each of which is a document; what
        Hugging Face's `save_to_disk` wrote; or `plays`, by Shakespeare. In Python, also
        texts by name, or what `data.from_text` or `data.from_jsonl` returned.
      clients: Number of clients, or of agents.
      divide: Function (documents of windows, clients, key=) that divides the windows;
        by default, every client has a piece of the text. With `partition.by_owner`,
        every document is a client; `partition.dirichlet` mixes documents.
      model: Function of the dataset that returns a language model, such as
        `problems.llama`; by default `gpt`.
      window: Number of tokens that are predicted in a window, the model's context.
      tokenizer: bytes, characters, or the path of a tokenizer.json.
      test_share: Share of every document that is held out, at its end.
      short: What becomes of documents with fewer than two windows: refuse or drop
        them, or join all documents into one text.
      microbatch: Number of windows whose gradients are computed at a time; by default,
        those of a batch together. Fewer take less memory.
      graph: Agents without a server: the graph that they exchange messages on.

    Example:
      >>> letters = {"ann": 9 * "to be or not to be", "bob": 9 * "that is it"}
      >>> problem = text(letters, window=8, divide=fm.partition.by_owner)
    """
    how: dict[str, Any] = {"window": window, "tokenizer": tokenizer}
    how |= {"test_share": test_share, "short": short}
    data = path if isinstance(path, Dataset) else from_text(path, **how)
    module = (model or gpt)(data)
    task = tasks.language(module, data)
    return problem_of(
        module,
        task if microbatch is None else tasks.microbatched(task, microbatch),
        data,
        {"cohort": clients, "local_steps": 30, "batch_size": 8},
        clients=clients,
        divide=division_of(divide, partition.contiguous),
        positives=None,
        graph=graph,
        client_tests=False,
    )

"""Problems that start at published weights: RoBERTa with adapters, and Swin-Tiny.

    problem = roberta("rte", checkpoint="roberta-base", clients=4)
    problem = swin_tiny("cifar100", checkpoint="swin/model.safetensors", clients=100)

The ids of texts are those of the vocabulary beside RoBERTa's weights.
"""

import dataclasses
from pathlib import Path

from experiments.papers.pretrained.byte_pairs import roberta_encoder
from experiments.papers.pretrained.roberta import load_roberta, roberta_of
from experiments.papers.pretrained.swin import load_swin, without_head
from fedjax_muon import data, problems
from fedjax_muon.data.loading import Directory
from fedjax_muon.tasks.augmentation import Augmentation
from fedjax_muon.tasks.classification import by_matthews, starting_at
from fedjax_muon.tasks.lora import lora_classification


@problems.named
def roberta(
    dataset: str,
    *,
    checkpoint: Path,
    clients: int,
    divide: problems.Divide | None = None,
    rank: int = 16,
    max_tokens: int = 128,
    data_dir: Directory = None,
) -> problems.Problem:
    """Sentences, by adapters of RoBERTa and a head alone.

    Args:
      dataset: A name whose examples are texts.
      checkpoint: Directory of roberta-base: model.safetensors, config.json, vocab.json
        and merges.txt; or that file in it.
      clients: Number of clients.
      divide: How the training examples are divided among them.
      rank: Of the adapters.
      max_tokens: Longer texts are truncated.
      data_dir: Directory of the dataset's files.
    """
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    encoder = roberta_encoder(folder / "vocab.json", folder / "merges.txt", max_tokens)
    model = roberta_of(checkpoint)
    if encoder.tokens > model.vocabulary_size or encoder.padding != model.padding:
        raise ValueError(
            f"{folder}: vocab.json has {encoder.tokens} token ids and the padding "
            f"{encoder.padding}, config.json {model.vocabulary_size} and "
            f"{model.padding}; take both from the same model"
        )
    texts = data.load(dataset, data_dir, encoder=encoder)
    model = model.clone(classes=len(texts.classes))
    made = problems.classification(
        texts, clients=clients, divide=divide, model=lambda data: model
    )
    frozen = load_roberta(checkpoint, model)
    task = lora_classification(model, frozen, texts.x_train.shape[1:], rank=rank)
    task = by_matthews(task) if dataset == "cola" else task
    name = made.name.replace("your data", dataset)
    return dataclasses.replace(made, name=name, task=task)


@problems.named
def swin_tiny(
    dataset: str,
    *,
    checkpoint: Path,
    clients: int,
    divide: problems.Divide | None = None,
    augment: Augmentation | None = None,
    data_dir: Directory = None,
) -> problems.Problem:
    """Images, by all parameters of Swin but for its head, which is new.

    Args:
      dataset: A name whose examples are images in color, of any size.
      checkpoint: model.safetensors with timm's names, or its directory.
      clients: Number of clients.
      divide: How the training examples are divided among them.
      augment: Augmentation of training images.
      data_dir: Directory of the dataset's files.
    """
    swin, params = load_swin(checkpoint)
    made = problems.classification(
        dataset,
        clients=clients,
        divide=divide,
        model=lambda data: swin.clone(classes=len(data.classes)),
        augment=augment,
        data_dir=data_dir,
    )
    start = without_head(params)
    return dataclasses.replace(made, task=starting_at(made.task, start))

"""Datasets of runs, and models that start at pretrained weights."""

from pathlib import Path

import jax.numpy as jnp

from fedjax_muon import models
from fedjax_muon.data import Dataset
from fedjax_muon.data.byte_pairs import roberta_encoder
from fedjax_muon.data.loading import OPTIONS, is_of_user, open_dataset
from fedjax_muon.data.text import Encoder
from fedjax_muon.models import checkpoint
from fedjax_muon.runs.config import Config
from fedjax_muon.tasks.classification import classification, starting_at
from fedjax_muon.tasks.lora import lora_classification
from fedjax_muon.tasks.task import Task
from fedjax_muon.versions import check_installed

GET = {
    "roberta": f"the directory of roberta-base, from {checkpoint.ROBERTA_URL}",
    "swin_tiny": f"model.safetensors from {checkpoint.SWIN_URL}",
}


def checkpoint_of(config: Config) -> Path | None:
    """Where a run starts, if at a checkpoint. Raises `ValueError` if its model has
    none, or needs one that is not there."""
    if config.checkpoint is None:
        if config.model == "roberta":
            raise ValueError(
                "the model roberta is not trained from scratch; give --checkpoint "
                f"{GET['roberta']}"
            )
        return None
    if config.model not in GET:
        raise ValueError(
            f"the model {config.model} takes no checkpoint; leave out checkpoint, or "
            f"choose one of {', '.join(GET)}"
        )
    if config.problem != "classification":
        raise ValueError(
            "a checkpoint is only for classification; leave out checkpoint or problem"
        )
    for package in ("safetensors", "tokenizers"):
        check_installed(package, "a checkpoint")
    if not config.checkpoint.exists():
        raise ValueError(
            f"the checkpoint {config.checkpoint} does not exist; give "
            f"{GET[config.model]}"
        )
    return config.checkpoint


def dataset_of(config: Config) -> Dataset:
    """The dataset of a run, in the ids of its model's own vocabulary if it has one."""
    options = {name: getattr(config, name) for name in (*OPTIONS, "train_share")}
    place = checkpoint_of(config) if config.model == "roberta" else None
    if place is not None and is_of_user(config.dataset):
        raise ValueError(
            "the model roberta cannot read sentences from your own files; encode them "
            "in Python with fedjax_muon.data.byte_pairs"
        )
    encoder = None if place is None else _encoder(place, config.max_tokens)
    return open_dataset(config.dataset, config.data_dir, encoder=encoder, **options)


def _encoder(place: Path, max_tokens: int) -> Encoder:
    """The encoder beside a checkpoint, whose ids are those of the model."""
    folder = place if place.is_dir() else place.parent
    encoder = roberta_encoder(folder / "vocab.json", folder / "merges.txt", max_tokens)
    model = models.roberta_of(place)
    if encoder.tokens > model.vocabulary_size:
        raise ValueError(
            f"{folder}: vocab.json has {encoder.tokens} token ids, config.json "
            f"{model.vocabulary_size}; take both from the same model"
        )
    if encoder.padding != model.padding:
        raise ValueError(
            f"{folder}: vocab.json has the padding {encoder.padding}, config.json "
            f"{model.padding}; take both from the same model"
        )
    return encoder


def task_of(config: Config, place: Path, dataset: Dataset) -> Task:
    """Of a run that starts at `place`: RoBERTa by adapters and head alone, Swin in all
    of its parameters."""
    classes, shape = len(dataset.classes), dataset.x_train.shape[1:]
    half = config.compute_dtype == "bfloat16"
    if config.model == "roberta":
        if half:
            raise ValueError("roberta computes in float32; leave out compute_dtype")
        model = models.roberta_of(place, classes)
        frozen = models.load_roberta(place, model)
        return lora_classification(model, frozen, shape, rank=config.lora_rank)
    swin, params = models.load_swin(place)
    tuned = swin.clone(classes=classes, dtype=jnp.bfloat16 if half else None)
    start = checkpoint.without_head(params)
    return starting_at(classification(tuned, shape), start)

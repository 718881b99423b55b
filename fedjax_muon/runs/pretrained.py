"""Data sets of runs, and models that start at pretrained weights."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from fedjax_muon import data, models
from fedjax_muon.data import Dataset
from fedjax_muon.data.byte_pairs import roberta_encoder
from fedjax_muon.data.dataset import stratified, subset
from fedjax_muon.data.folders import by_pattern
from fedjax_muon.data.hugging_face import is_saved
from fedjax_muon.models import roberta_checkpoint, swin_checkpoint
from fedjax_muon.runs.config import Config, is_own
from fedjax_muon.tasks.classification import classification, starting_at
from fedjax_muon.tasks.lora import lora_classification
from fedjax_muon.tasks.task import Task
from fedjax_muon.versions import install_command

GET = {
    "roberta": f"the directory of roberta-base, from {roberta_checkpoint.URL}",
    "swin_tiny": f"model.safetensors from {swin_checkpoint.URL}",
}

TABLE = "tables (a CSV file, or a data set of Hugging Face)"
OPTIONS = {  # what options of one's own data are for
    "label": TABLE,
    "owner": f"{TABLE} or directories of images",
    "split": "CSV files",
    "exclude": TABLE,
    "image_size": "directories of images",
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
            f"the model {config.model} has no checkpoint; leave it out, or choose one "
            f"of {', '.join(GET)}"
        )
    if config.problem != "classification":
        raise ValueError(
            "a checkpoint is for classification; leave it out, or --problem"
        )
    absent = [n for n in ("safetensors", "tokenizers") if not find_spec(n)]
    if absent:
        raise ValueError(
            f"a checkpoint needs {' and '.join(absent)}: {install_command(*absent)}"
        )
    if not config.checkpoint.exists():
        raise ValueError(
            f"the checkpoint {config.checkpoint} does not exist; give "
            f"{GET[config.model]}"
        )
    return config.checkpoint


def dataset_of(config: Config) -> Dataset:
    """The data set of a run, in the ids of its model's own vocabulary if it has one."""
    dataset = _whole(config)
    if config.train_share == 1:
        return dataset
    _, kept = stratified(dataset.y_train, config.train_share)
    return subset(dataset, kept)


def _own(config: Config) -> Dataset:
    """The user's own file or directory."""
    if config.model == "roberta":
        raise ValueError(
            "the model roberta needs sentences, which are not read from your own "
            "files; encode them by fedjax_muon.data.byte_pairs, in Python"
        )
    place = Path(config.dataset)
    columns: dict[str, Any] = {
        "label": config.label,
        "owner": config.owner,
        "exclude": config.exclude,
    }
    if config.dataset.endswith(".csv"):
        return data.from_csv(place, split=config.split, **columns)
    if config.dataset.endswith(".npz"):
        return data.from_npz(place)
    if is_saved(place):
        return data.from_hf(place, size=config.image_size, **columns)
    owner = None if config.owner is None else by_pattern(config.owner)
    return data.from_folder(place, size=config.image_size, owner=owner)


def _check_options(config: Config) -> None:
    """Refuses options for data that does not have what they name."""
    place = Path(config.dataset)
    allowed: tuple[str, ...] = ()
    if config.dataset.endswith(".csv"):
        allowed = ("label", "owner", "split", "exclude")
    elif is_own(config.dataset) and place.suffix != ".npz":
        saved = is_saved(place)
        allowed = ("owner", "image_size", *(("label", "exclude") if saved else ()))
    for name in ("label", "owner", "split", "exclude", "image_size"):
        field = Config.__dataclass_fields__[name]
        if name not in allowed and getattr(config, name) != field.default:
            raise ValueError(
                f"{name} is for {OPTIONS[name]}, and {config.dataset} is none; leave "
                "it out"
            )


def _whole(config: Config) -> Dataset:
    _check_options(config)
    place = checkpoint_of(config) if config.model == "roberta" else None
    if is_own(config.dataset):
        return _own(config)
    if place is None:
        return data.load(config.dataset, config.data_dir)
    folder = place if place.is_dir() else place.parent
    encoder = roberta_encoder(
        folder / "vocab.json", folder / "merges.txt", config.max_tokens
    )
    model = models.roberta_of(place)
    padding, known = model.padding, model.vocabulary_size
    if encoder.tokens > known:
        raise ValueError(
            f"{folder}: vocab.json has {encoder.tokens} token ids, config.json "
            f"{known}; take both from the same model"
        )
    if encoder.padding != padding:
        raise ValueError(
            f"{folder}: vocab.json has the padding {encoder.padding}, config.json "
            f"{padding}; take both from the same model"
        )
    return data.load(config.dataset, config.data_dir, encoder=encoder)


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
    start = swin_checkpoint.without_head(params)
    return starting_at(classification(tuned, shape), start)

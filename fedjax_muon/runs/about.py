"""What a program needs to use the parameters of a run, beside the run."""

import dataclasses
import hashlib
import json
from typing import Any

import flax.linen as nn
import numpy as np

from fedjax_muon.core import Algorithm
from fedjax_muon.data.columns import as_json
from fedjax_muon.problems import Problem
from fedjax_muon.runs.simulate import Method, name_of
from fedjax_muon.tasks.regression import scale_of
from fedjax_muon.versions import PACKAGE_VERSION
from fedjax_muon.wrappers.personalization import ditto, keep_own

ABOUT = "about.json"
OF_FLAX = ("parent", "name")  # fields of all modules


def metadata_of(problem: Problem, method: Method) -> dict[str, Any]:
    """What a program needs to use the parameters: values that JSON can represent."""
    dataset, scales = problem.dataset, problem.dataset.standardization
    values: dict[str, Any] = {
        "version": PACKAGE_VERSION,
        "algorithm": name_of(method),
        "dataset": dataset.name,
        "model": about_model(problem.model),
        "input_shape": dataset.x_train.shape[1:],
        "input_dtype": str(dataset.x_train.dtype),
        "classes": dataset.classes,
        "standardization": None,
        "agents": not isinstance(method, Algorithm),
    }
    if scales is not None:
        values["standardization"] = {
            **scales._asdict(),
            "dtype": str(scales.mean.dtype),
        }
    if not dataset.classes:
        values["target"] = scale_of(dataset)._asdict()
    if dataset.words:
        values["words"] = dataset.words
    if dataset.columns is not None:
        values["columns"] = as_json(dataset.columns.published())
    if dataset.tokenizer is not None:  # whose classes are documents
        window = dataset.x_train.shape[1] - 1
        values |= {"tokenizer": _about_tokens(problem), "window": window}
        values |= {"input_shape": [window]}
        del values["classes"]
    return json.loads(json.dumps(values, default=_json_of))


def about_model(module: nn.Module | None) -> dict[str, Any]:
    """The name of a module and its fields, as values that JSON can represent."""
    fields = [] if module is None else dataclasses.fields(module)
    named = {f.name: getattr(module, f.name) for f in fields if f.name not in OF_FLAX}
    about = {"name": type(module).__name__, **named}
    return json.loads(json.dumps(about, default=_json_of))


def keeps_parameters(method: Method) -> bool:
    """Whether clients have parameters of their own, which the server does not know."""
    recipe = getattr(method, "recipe", None)
    inner = None if recipe is None else recipe.arguments.get("algorithm")
    own = recipe is not None and recipe.function in (ditto, keep_own)
    return own or (inner is not None and keeps_parameters(inner))


def _about_tokens(problem: Problem) -> dict[str, Any]:
    """The name of a tokenizer, with its letters or its file."""
    tokenizer = problem.dataset.tokenizer
    place = getattr(tokenizer, "path", None)
    about: dict[str, Any] = {"name": getattr(tokenizer, "name", str(tokenizer))}
    if tokenizer is not None and about["name"] == "characters":
        about["letters"] = [tokenizer.decode([i]) for i in range(tokenizer.vocabulary)]
    elif place is not None and place.is_file():
        digest = hashlib.sha256(place.read_bytes()).hexdigest()
        about |= {"path": str(place), "sha256": digest}
    return about


def _json_of(value: Any) -> Any:
    """The numbers of an array, or the name of a type of numbers or of a function."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    try:
        return np.dtype(value).name
    except (TypeError, ValueError):  # of a class that is no type of numbers
        return getattr(value, "__qualname__", str(value))

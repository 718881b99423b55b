"""Directories of runs in Python, and parameters in a file for other programs."""

from pathlib import Path
from typing import Any

from fedjax_muon.files import write
from fedjax_muon.models.weights import check_target, save_params
from fedjax_muon.runs.identity import words_of
from fedjax_muon.runs.predicting import TrainedModel, load_model
from fedjax_muon.runs.results import (
    COMPARISON,
    SWEPT,
    Comparison,
    Sweeps,
    Trained,
    read_comparison,
    read_run,
    read_sweeps,
)


def load_run(directory: str | Path) -> Trained | Comparison | Sweeps:
    """Loads what `train`, `compare` or `sweep` left in a directory.

    It needs neither the data nor your own code, and also reads what is not finished.

    Returns:
      What the call returned: all have `rows`, and `frame()` makes a table of them. The
      state of a run is in dictionaries of arrays, and a sweep has no method.

    Example:
      >>> run = load_run("runs/20261121-101500-train")  # doctest: +SKIP
      >>> run.frame().plot("round", "test_accuracy")  # doctest: +SKIP
      >>> logits = model.apply({"params": run.params}, x)  # doctest: +SKIP
    """
    place = Path(directory).expanduser()
    if "seed" in words_of(place):
        return read_run(place)
    if (place / COMPARISON).exists():
        return read_comparison(place)
    if place.is_dir() and any(place.rglob(SWEPT)):
        return read_sweeps(place)
    raise ValueError(f"{directory} is not the directory of a run")


def export(run: Path, file: Path, *, overwrite: bool = False) -> str:
    """Writes the parameters of a run to a file for other programs.

    Args:
      run: Directory of the run.
      file: Its name ends in .safetensors.
      overwrite: Whether an existing file is replaced.

    Example:
      >>> result = fm.train(fm.fedavg(lr=0.1), problem, rounds=1, directory="run")
      >>> fm.export("run", "run.safetensors")
      'the parameters of round 1 are in run.safetensors'
    """
    file = Path(file)
    check_target(file, overwrite=overwrite)
    loaded = _one_run(run)
    params, metadata = loaded.params, loaded.metadata
    save_params(file, params, metadata=metadata, overwrite=overwrite)
    return f"the parameters of round {metadata['round']} are in {file}"


def predict(run: Path, file: Path, *, output: Path | None = None) -> str:
    """Predict the classes of new examples.

    Args:
      run: Directory of a run, or a file that `export` wrote.
      file: A CSV file, an image, or a folder of images, as they were before training.
      output: A new CSV file for the predictions; by default they are printed.
    """
    place = None if output is None else Path(output).expanduser()
    if place is not None and place.exists():
        raise ValueError(f"{output} exists already; choose another name")
    found = f"{_model(run).predict(file)}"
    if place is None:
        return found
    write(place, found + "\n")
    return f"the predictions are in {output}"


def sample(
    run: Path,
    prompt: str,
    *,
    length: int | None = None,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> str:
    """Continue a text with a language model.

    Args:
      run: Directory of a run, or a file that `export` wrote.
      prompt: The beginning.
      length: Number of tokens to draw; by default, what the model's context holds.
      seed: Decides what is drawn.
      temperature: Logits are divided by it; below 1, likely tokens become likelier.
      top_k: Tokens are drawn from the `top_k` likeliest ones; by default from all.
    """
    how: Any = {"seed": seed, "temperature": temperature, "top_k": top_k}
    return _model(run).sample(prompt, length, **how)


def _model(run: Path) -> TrainedModel:
    """The model of a run, or in a file."""
    place = Path(run).expanduser()
    return load_model(place) if place.is_file() else _one_run(place).model


def _one_run(run: Path) -> Trained:
    place = Path(run).expanduser()
    loaded = load_run(place)
    if not isinstance(loaded, Trained):
        runs = sorted(place.glob("**/seed*/checkpoints"))
        known = ", ".join(str(each.parent.relative_to(place)) for each in runs)
        known = known or "no run with parameters"
        raise ValueError(f"{run} has several runs; name one of them: {known}")
    return loaded

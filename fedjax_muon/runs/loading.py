"""Directories of runs in Python, and parameters in a file for other programs."""

from pathlib import Path

from fedjax_muon.models.weights import check_target, save_params
from fedjax_muon.runs.identity import words_of
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
    """
    file, place = Path(file), Path(run).expanduser()
    check_target(file, overwrite=overwrite)
    loaded = load_run(place)
    if not isinstance(loaded, Trained):
        runs = sorted(place.glob("**/seed*/checkpoints"))
        known = ", ".join(str(each.parent.relative_to(place)) for each in runs)
        known = known or "no run with parameters"
        raise ValueError(f"{run} has several runs; name one of them: {known}")
    params, metadata = loaded.params, loaded.metadata
    save_params(file, params, metadata=metadata, overwrite=overwrite)
    return f"the parameters of round {metadata['round']} are in {file}"

"""Sizes on disk of the required dependencies, as the table of results/dependencies.md.

    python -m benchmarks.install_size

The dependencies are those in the metadata of the installed `fedjax-muon`. After a
change of `pyproject.toml`, install the package again before you run this.
"""

import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PACKAGE = "fedjax-muon"
MEGABYTE = 1e6  # bytes
NAMED = 5 * MEGABYTE  # the table names indirect packages of this size and above
Names = frozenset[str]

USED_FOR = {
    "chex": "checks of trees and shapes",
    "docstring-parser": "descriptions of the options of methods, from docstrings",
    "lazy-loader": "names of `import fedjax_muon`, imported at their first use",
    "filelock": "lock of a run directory; JAX takes it for its cache of programs",
    "flax": "models, and paths of their parameters",
    "importlib-resources": "imported by tensorflow-datasets, which does not require it",
    "jax": "arrays, gradients, compilation, random keys, devices",
    "jaxlib": "compiler and CPU runtime of JAX, imported by jax",
    "matplotlib": "figures",
    "networkx": "graphs of decentralized methods",
    "numpy": "datasets, partitions, values on the host",
    "optax": "gradient transformations of local and server steps, losses",
    "orbax-checkpoint": "checkpoints of runs",
    "packaging": "check of the installed versions",
    "pyarrow": "reading CSV files; tensorflow-datasets reads with it",
    "pillow": "JPEG files of Tiny ImageNet; images in tensorflow-datasets",
    "platformdirs": "path of the cache of compiled programs",
    "rich": "tables and progress bars in the terminal",
    "scikit-learn": "digits, breast cancer, stratified splits, words",
    "scipy": "privacy accounting, confidence intervals",
    "tensorflow-datasets": "reading and preparing the datasets `tfds:NAME`",
}


def canonical(name: str) -> str:
    """A name as package indexes compare it: lower case, with hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(name: str, extras: Iterable[str] = ()) -> dict[str, Names]:
    """The packages that an installed package requires here, and the extras of each.

    Args:
      name: The package.
      extras: The extras of `name` that are installed.

    Returns:
      The extras that are required of each package, by its name.
    """
    found: dict[str, Names] = {}
    for line in metadata.requires(name) or []:
        one = Requirement(line)
        needed = any(
            one.marker is None or one.marker.evaluate({"extra": extra})
            for extra in ("", *extras)
        )
        if needed:
            key = canonical(one.name)
            found[key] = found.get(key, frozenset()) | one.extras
    return found


def closure(name: str, extras: Names) -> Names:
    """The package, all that it requires, and all that these require."""
    seen: dict[str, Names] = {}
    left = [(canonical(name), extras)]
    while left:
        one, needed = left.pop()
        known = seen.get(one)
        if known is None or not needed <= known:
            seen[one] = needed | (known or frozenset())
            left += required(one, seen[one]).items()
    return frozenset(seen)


def size(name: str) -> int:
    """Bytes of the files that the installer recorded, compiled Python included.

    Raises:
      ValueError: If the package has no record of its files.
    """
    files = metadata.files(name)
    if files is None:
        raise ValueError(
            f"{name} has no record of its files; install it again with pip"
        )
    paths = {Path(file.locate()).resolve() for file in files}
    return sum(path.stat().st_size for path in paths if path.is_file())


def table(used_for: Mapping[str, str]) -> list[str]:
    """The lines of the table in Markdown, largest packages first.

    Args:
      used_for: What each required package is used for.

    Returns:
      A row for each required package, one for all others, and the total.

    Raises:
      ValueError: If `used_for` lacks a required package.
    """
    direct = required(PACKAGE)
    missing = sorted(direct.keys() - used_for.keys())
    if missing:
        raise ValueError(
            f"no entry for {', '.join(missing)} in USED_FOR; describe there what each "
            "is used for"
        )
    closures = {name: closure(name, extras) for name, extras in direct.items()}
    everything = Names().union(*closures.values())
    sizes = {name: size(name) for name in everything}
    lines = [
        "| package | version | own size, MB | only through it, MB | used for |",
        "|---|---|---:|---:|---|",
    ]
    for name in sorted(direct, key=lambda name: (-sizes[name], name)):
        others = Names().union(*(c for n, c in closures.items() if n != name))
        alone = {one: sizes[one] for one in closures[name] - others - {name}}
        cells = [
            name,
            metadata.version(name),
            megabytes(sizes[name]),
            added(alone),
            used_for[name],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    rest = everything - direct.keys()
    size_of_rest = megabytes(sum(sizes[name] for name in rest))
    total = megabytes(sum(sizes.values()))
    lines += [
        f"| {len(rest)} packages that these require | | {size_of_rest} | | |",
        f"| **all {len(everything)} packages** | | **{total}** | | |",
    ]
    return lines


def added(sizes: Mapping[str, int]) -> str:
    """The sum of these sizes in MB, with the names of the largest packages."""
    if not sizes:
        return "-"
    large = sorted(name for name in sizes if sizes[name] >= NAMED)
    names = ", ".join(f"{name} {megabytes(sizes[name])}" for name in large)
    return megabytes(sum(sizes.values())) + (f" ({names})" if names else "")


def megabytes(count: int) -> str:
    """Bytes in MB, with one decimal."""
    return f"{count / MEGABYTE:.1f}"


if __name__ == "__main__":
    print("\n".join(table(USED_FOR)))

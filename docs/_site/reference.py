"""The API reference: a page for every purpose, read off the files of the package.

A page has a table of its names, and then one after the other. The names of a module are
those of its `__all__`, or else the functions and classes that it defines. A name is on
the first page that lists it. What no page lists is internal.
"""

from collections.abc import Iterator
from pathlib import Path

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PACKAGE = "fedjax_muon"
# page -> title, and the modules whose names it has; `module:names` has these alone, and
# `package:*` the recorded functions of its modules
PAGES = {
    "fm": (
        "Training and simulation",
        ":train compare sweep simulate",
        "runs:Comparison Sweeps Swept Trained TrainedModel Predictions",
        ":federate run Simulation NonFiniteError early_stopping run_cells"
        " Cell tune cache_programs load_run save_params load_params"
        " load_metadata load_model cite",
        "simulation:uniform by_examples STATE NonFiniteLossError",
        "simulation.program:Data Run Program",
        "simulation.participation:equal of_each epochs",
        "simulation.rounds:Weighting",
        "simulation.batching:Sampler with_replacement without_replacement"
        " shuffled_epochs full_batch poisson always cyclic",
        "simulation.checkpoint:fingerprint digest open_checkpoints save restore"
        " notes_of CheckpointError",
    ),
    "problems": ("Problems", "problems"),
    "algorithms": (
        "Algorithms",
        ":fedmuon fedmuon_align fedmuon_correct fedavg scaffold fedprox",
        "algorithms:*",
        "algorithms:ALL",
        "algorithms.registry:Method",
    ),
    "minimax": ("Minimax methods", "minimax", "minimax:ALL"),
    "decentralized": (
        "Decentralized methods",
        ":decentralize",
        "decentralized",
        "decentralized.estimators:fresh ema storm noisy",
        "decentralized.suda:Triple",
        "decentralized.topology:ring complete star exponential erdos_renyi metropolis"
        " constant spectral_gap RandomGraph",
    ),
    "privacy": ("Privacy", "privacy"),
    "compression": (
        "Compression",
        "compression:compress compress_broadcasts truncated_svd power_iteration top_k"
        " chunked_top_k quantize bins no_compression rank_share memory_share Compressor"
        " Encoded",
    ),
    "robust": ("Robust aggregation", "aggregators", "attacks"),
    "asynchronous": (
        "Asynchronous rounds",
        "simulation.cohorts:sampled poisson timed",
        "simulation.arrivals:buffered fedasync replayed Arrival",
        "clocks",
        "staleness",
    ),
    "personalization": ("Personalization", "personalization:keep_own ditto"),
    "transforms": (
        "Update rules",
        "transforms",
        "wrappers.spheres:keep_norms",
        "linalg.newton_schulz",
        "linalg.lmo",
    ),
    "core": ("Writing algorithms", "core", "core.pair", "core.tree"),
    "data": (
        "Datasets and partitions",
        "data",
        "data.partition:iid contiguous dirichlet dirichlet_per_client labels_per_client"
        " quantity shards by_owner add_noise label_counts plot",
        "data.tokenizers:of_bytes characters from_file Tokenizer",
        "data.instructions:chatml Piece",
        "data.client_tests",
        "data.imbalance",
    ),
    "tasks": (
        "Tasks",
        "tasks",
        "tasks.metrics:roc_auc matthews hill mean_loss mean_error accuracy auc mcc",
        "tasks.augmentation:augmented crop_and_flip",
        "tasks.heavy_tails",
        "tasks.quadratic",
        "tasks.lora:lora_classification lora_language merged",
        "tasks.robust:robust_logistic",
    ),
    "models": ("Models", "models"),
    "engine": (
        "Engine and plans",
        "engine",
        "engine.plans:Plan loop mapped vmapped chunked",
        ":compile_for",
        "simulation.tuning:Tuned",
    ),
    "tracking": ("Trackers and figures", "tracking", "runs.summary", "runs.plots"),
    "deploy": (
        "Real clients",
        "deploy",
        "deploy.nvflare:Site sites published",
        "wrappers.secure_sums:secure_sums",
    ),
}


INTRODUCTION = """# API

All public names by purpose, with `import fedjax_muon as fm`.

| page | names |
|---|---|
"""
FIRST = 6  # names of a page that the table of all pages shows, functions first


def target(found: griffe.Object | griffe.Alias) -> griffe.Object | None:
    """What a name stands for; nothing for a module.

    A module in the way of its function, as in `algorithms.fedavg`, is the function.
    """
    one = found.final_target if isinstance(found, griffe.Alias) else found
    if one.is_module:
        inside = one.members.get(one.name)
        return None if inside is None else target(inside)
    return one


def is_own(one: griffe.Object | griffe.Alias) -> bool:
    """Whether a module defines a public function or class."""
    public = not one.name.startswith("_")
    return public and not one.is_alias and (one.is_function or one.is_class)


def is_recorded(one: griffe.Object | griffe.Alias) -> bool:
    """Whether a public object is a function that makes an algorithm."""
    return one.is_function and any(str(d.value) == "recorded" for d in one.decorators)


def is_exported(one: griffe.Object | griffe.Alias) -> bool:
    """Whether a module takes a name from another one of the package."""
    return one.is_alias and one.target_path.startswith(f"{PACKAGE}.")


def named(entry: str, package: griffe.Module) -> Iterator[tuple[str, griffe.Object]]:
    """The names of a line of `PAGES`, as users write them, and what they are."""
    path, _, names = entry.partition(":")
    module = package[path] if path else package
    if module.is_alias:
        module = module.final_target
    own = [name for name, one in module.members.items() if is_own(one)]
    stub = [name for name, one in module.members.items() if is_exported(one)]
    recorded = [
        f"{file.name}.{name}"
        for file in module.modules.values()
        for name, one in file.members.items()
        if "ALL" not in file.members and is_own(one) and is_recorded(one)
    ]
    listed = names.split() or module.exports or own or stub
    listed = recorded if names == "*" else listed
    for name in map(str, listed):
        found = target(module[name])
        if found is not None:
            yield f"fm.{path}.{name}".replace("..", "."), found


def shortest(shown: str, package: griffe.Module) -> str:
    """The name as a member of the package, such as `fm.fedavg` or `fm.tree.add`."""
    *above, module, name = shown.split(".")
    found = package[shown.removeprefix("fm.")]
    if name in package.members and target(package[name]) is target(found):
        return f"fm.{name}"
    if above and module in package.members and name in package[module].members:
        return f"fm.{module}.{name}"
    return shown


def summary_of(found: griffe.Object) -> str:
    """The first sentence about an object, on one line."""
    text = found.docstring.value if found.docstring else ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def block(shown: str, path: str) -> str:
    """What mkdocstrings puts the documentation of a name in the place of."""
    options = f"    options:\n      heading: {shown}\n      toc_label: {shown}"
    return f"::: {path}\n{options}"


def pages() -> dict[str, tuple[str, list[str]]]:
    """The pages and links to the names on them, by the names of the pages."""
    how = {"search_paths": [str(ROOT)], "allow_inspection": False}
    fields = griffe.load_extensions(str(ROOT / "docs" / "_site" / "fields.py"))
    package = griffe.load(PACKAGE, extensions=fields, **how)
    seen, made = set(), {}
    for page, (title, *entries) in PAGES.items():
        rows, blocks, links = ["| name | |", "|---|---|"], [], []
        for entry in entries:
            for shown, found in named(entry, package):
                if found.path in seen:
                    continue
                seen.add(found.path)
                short = shortest(shown, package)
                links.append(f"[`{short}`][{found.path}]")
                rows.append(f"| {links[-1]} | {summary_of(found)} |")
                blocks.append(block(short, found.path))
        text = "\n\n".join([f"# {title}", "\n".join(rows), *blocks]) + "\n"
        made[page] = text, links
    return made


def on_files(files, config):
    """Adds the pages, and one that lists them."""
    index = INTRODUCTION
    for page, (text, links) in pages().items():
        files.append(File.generated(config, f"reference/{page}.md", content=text))
        more = f", and {len(links) - FIRST} more" if len(links) > FIRST else ""
        functions = sorted(
            links, key=lambda link: not link.partition("`]")[0].islower()
        )
        names = ", ".join(functions[:FIRST]) + more
        index += f"| [{PAGES[page][0]}]({page}.md) | {names} |\n"
    index += "| [Command-line options](options.md) | of each command |\n"
    files.append(File.generated(config, "reference/index.md", content=index))
    return files

"""The rows of the board: a line for each method, with where its search begins.

A row of your own is a file with the same `ROWS`, see `row`. The rate `lr` falls to 0 by
a cosine on all tracks. Methods whose server normalizes its step have their server's
rate as `lr`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import optax

import fedjax_muon as fm
from experiments.board.row import Method, Row
from fedjax_muon import aggregators, decentralized
from fedjax_muon.algorithms import ALL
from fedjax_muon.transforms import hidden_matrices, muon, spectral

DIGITS = ("digits",)
IMAGES = (*DIGITS, "fashion", "fashion_classes")
EVERYWHERE = (*IMAGES, "heart", "plays")
PRIVATE = ("private",)
RING = ("ring",)
AUTHORS = {"cohort": 16, "local_steps": 30}  # all clients, many steps


def of(
    name: str, lr: float, tracks: tuple[str, ...], /, label: str = "", **other: float
) -> Row:
    """The row of a method of the library by its name there."""
    method = {**ALL, **decentralized.ALL}[name]
    return Row(label or method.label, method.function, {"lr": lr, **other}, tracks)


def server(name: str, tracks: tuple[str, ...], lr: float = 0.03) -> Row:
    """The row of a method whose server normalizes its step."""
    method = ALL[name]

    def make(lr: Any, local_lr: Any) -> Any:
        return method.function(lr=local_lr, server_lr=lr)

    typed = {"lr": "server_lr", "local_lr": "lr"}
    return Row(method.label, make, {"lr": lr, "local_lr": 0.1}, tracks, typed=typed)


def align(weight: float) -> Row:
    """FedMuon with alignment of a fixed weight."""
    make = functools.partial(fm.fedmuon_align, align=weight)
    label = f"{ALL['fedmuon_align'].label}, weight {weight:g}"
    fixed = {"align": weight}
    return Row(label, lambda lr: make(lr=lr), {"lr": 0.03}, EVERYWHERE, fixed=fixed)


def apart(row: Row) -> Row:
    """The same with a clip norm for every field of private messages."""
    label = f"{row.label}, a norm each"
    return row._replace(label=label, tracks=PRIVATE, fields_apart=True)


def longer(row: Row, tracks: tuple[str, ...] = DIGITS) -> Row:
    """The same in the setting of DiLoCo's authors, with as many bytes."""
    label = f"{row.label}, 30 steps of all clients"
    return row._replace(label=label, tracks=tracks, sizes=AUTHORS)


FEDERATED = {
    "fedavg": of("fedavg", 0.1, EVERYWHERE + PRIVATE),
    "fedavg_momentum": of("fedavg_momentum", 0.03, EVERYWHERE + PRIVATE),
    "fedprox": of("fedprox", 0.1, EVERYWHERE + PRIVATE, mu=0.01),
    "fedexp": of("fedexp", 0.1, DIGITS),
    "feddyn": of("feddyn", 0.1, IMAGES, alpha=0.1),
    "scaffold": of("scaffold", 0.1, EVERYWHERE + PRIVATE),
    "scaffold_m": of("scaffold_m", 0.1, DIGITS),
    "fedcm": of("fedcm", 0.3, IMAGES),
    "fedavg_m": of("fedavg_m", 0.3, IMAGES + PRIVATE),
    "fedadam": server("fedadam", EVERYWHERE + PRIVATE),
    "fedyogi": server("fedyogi", DIGITS + PRIVATE),
    "fedadagrad": server("fedadagrad", DIGITS, 0.1),
    "fedavg_adam": of("fedavg_adam", 0.003, EVERYWHERE + PRIVATE),
    "scaffold_adam": of("scaffold_adam", 0.003, IMAGES),
    "local_adamw": of("local_adamw", 0.003, IMAGES),
    "fedadamw": of("fedadamw", 0.003, IMAGES),
    "fedlada": of("fedlada", 0.003, DIGITS),
    "diloco": of("diloco", 0.003, DIGITS, server_lr=0.7),
    "local_soap": of("local_soap", 0.003, DIGITS),
    "fedpac_soap": of("fedpac_soap", 0.003, DIGITS),
    "local_muon": of("local_muon", 0.1, EVERYWHERE + PRIVATE),
    "local_muon_averaged": of("local_muon_averaged", 0.03, IMAGES + PRIVATE),
    "muloco": of("muloco", 0.03, IMAGES, server_lr=0.7),
    "fedpac_muon": of("fedpac_muon", 0.03, DIGITS),
    "fedmuon": of("fedmuon", 0.03, EVERYWHERE + PRIVATE),
    "fedmuon_correct": of("fedmuon_correct", 0.03, EVERYWHERE + PRIVATE),
    "fedmuon_svd": of("fedmuon_svd", 0.03, DIGITS),
    "signmuon": of("signmuon", 0.003, DIGITS),
    "muonusign": of("muonusign", 0.03, DIGITS),
    **{f"fedmuon_align_{weight:g}": align(weight) for weight in (0.0, 0.25, 0.5)},
}
OTHER_SIZES = {
    f"{name}_30": longer(FEDERATED[name])
    for name in ("fedavg", "fedmuon", "diloco", "muloco")
}
CLIPPED = {
    "fedmuon_apart": apart(FEDERATED["fedmuon"]),
    "dp_fedmuon": server("dp_fedmuon", PRIVATE, 0.1),
}
AGENTS = {
    "dsgd": of("dsgd", 0.3, RING),
    "gradient_tracking": of("gradient_tracking", 0.3, RING),
    "suda": of("suda", 0.3, RING),
    "dsgd_muon": of("dsgd_muon", 0.03, RING),
    "gradient_tracking_muon": of("gradient_tracking_muon", 0.03, RING),
    "demuon": of("demuon", 0.03, RING),
    "suda_muon": of("suda_muon", 0.03, RING),
    "suda_muon_extra": of("suda_muon_extra", 0.03, RING),
    "suda_muon_gt": of("suda_muon_gt", 0.03, RING),
    "dsgda": of("dsgda", 0.3, RING)._replace(minimax=True),
    "dm_hsgd": of("dm_hsgd", 0.3, RING)._replace(minimax=True),
    "dp_sgda_unclipped": of("dp_sgda_unclipped", 0.1, RING)._replace(minimax=True),
    "dpmixsgd_unclipped": of("dpmixsgd_unclipped", 0.1, RING)._replace(minimax=True),
}

ADAM = optax.scale_by_adam(0.9, 0.99)
MATRICES: dict[str, Any] = {"layout": hidden_matrices}


def _tokens(label: str, method: Method, lr: float, **sizes: Any) -> Row:
    typed = {"lr": "server_lr"} if "local_steps" in sizes else {}
    return Row(label, method, {"lr": lr}, ("tokens",), sizes, typed=typed)


def _parallel(rule: optax.GradientTransformation) -> Method:
    """A rule of the mean gradient, whose clients take one step."""
    return lambda lr: fm.fedavg(1.0, server_lr=lr, server_rule=rule)


DECAYED = optax.chain(ADAM, optax.add_decayed_weights(0.01))
SPECTRAL = muon(0.9, rest=ADAM, shape_scale=spectral, layout=hidden_matrices)
ONE_STEP = {"local_steps": 1}
TOKENS = {
    "adamw_parallel": _tokens(
        "AdamW of the mean", _parallel(DECAYED), 3e-3, **ONE_STEP
    ),
    "muon_parallel": _tokens("Muon of the mean", _parallel(SPECTRAL), 0.03, **ONE_STEP),
    "fedavg_tokens": _tokens(
        "FedAvg(Adam)", lambda lr: fm.fedavg(lr, rule=ADAM), 0.003
    ),
    "fedmuon_tokens": _tokens("FedMuon", lambda lr: fm.fedmuon(lr), 0.03),
    "diloco_tokens": _tokens("DiLoCo", lambda lr: fm.diloco(lr), 0.003),
    "muloco_tokens": _tokens(
        "MuLoCo", lambda lr: fm.muloco(lr, layout=hidden_matrices), 0.03
    ),
    "sparseloco_tokens": _tokens("SparseLoCo", lambda lr: fm.sparseloco(lr), 0.003),
}


def _late(label: str, method: Method, lr: float, cohort: Callable[..., Any]) -> Row:
    return Row(label, method, {"lr": lr}, ("stragglers",), {"cohort": cohort})


def waiting(clock: Any, deadline: float) -> Any:
    return fm.timed(20, clock)


def _deadline(clock: Any, deadline: float) -> Any:
    return fm.timed(20, clock, deadline=deadline)


def _buffered(clock: Any, deadline: float) -> Any:
    return fm.buffered(20, 5, clock)


def _one_by_one(clock: Any, deadline: float) -> Any:
    return fm.fedasync(20, clock)


LATE: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "waiting": ("", waiting),
    "deadline": (", deadline", _deadline),
    "buffered": (", asynchronous", _buffered),
}
STRAGGLERS = {
    f"{name}_{how}": _late(ALL[name].label + words, ALL[name].function, lr, cohort)
    for name, lr in {"fedavg": 0.1, "fedavg_adam": 0.003, "fedmuon": 0.03}.items()
    for how, (words, cohort) in LATE.items()
} | {"fedasync": _late("FedAsync", fm.fedavg, 0.1, _one_by_one)}

SHARE = 0.2  # of the clients that attack
RULES: Mapping[str, tuple[str, Any]] = {
    "mean": ("", None),
    "trimmed_mean": (", trimmed mean", aggregators.trimmed_mean(SHARE)),
    "krum": (", multi-Krum", aggregators.krum(SHARE, chosen=None)),
    "mixing": (
        ", mixing and median",
        aggregators.chain(
            aggregators.nearest_neighbor_mixing(SHARE), aggregators.median()
        ),
    ),
    "clipping": (", centered clipping", aggregators.centered_clipping(1.0, 3)),
}


def _robust(name: str, rule: str, lr: float) -> Row:
    words, aggregator = RULES[rule]
    make = ALL[name].function

    def method(lr: Any) -> Any:
        algorithm = make(lr=lr)
        return algorithm if aggregator is None else fm.robust(algorithm, aggregator)

    return Row(ALL[name].label + words, method, {"lr": lr}, ("attackers",))


ATTACKED = {
    f"{name}_{rule}": _robust(name, rule, lr)
    for name, lr in {"fedavg": 0.1, "fedmuon": 0.03}.items()
    for rule in RULES
}
ROWS: dict[str, Row] = {
    **FEDERATED,
    **OTHER_SIZES,
    **CLIPPED,
    **AGENTS,
    **TOKENS,
    **STRAGGLERS,
    **ATTACKED,
}

"""This library: python conformance/check.py conformance/adapters/fedjax_muon.py."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_muon as fm
from fedjax_muon import decentralized as gossip, engine
from fedjax_muon.core import Messages, Objective, tree
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized import engine as gossip_engine
from fedjax_muon.decentralized.private import Mechanism, private
from fedjax_muon.engine import plans
from fedjax_muon.linalg.newton_schulz import polar
from fedjax_muon.privacy.clipping import clipped
from fedjax_muon.transforms import by_rank, jordan, muon, orthogonalize
from fedjax_muon.transforms.variants import scale_by_adamuon, scale_by_normuon
from fedjax_muon.wrappers import aggregators
from fedjax_muon.wrappers.compression import Compressor
from fedjax_muon.wrappers.personalization import params_of_clients

Arrays = dict[str, np.ndarray]
# compiled in half the time, for programs that run a few times
QUICKLY = {"xla_backend_optimization_level": 0}
QUICKLY |= {"xla_llvm_disable_expensive_passes": True}
quick = partial(jax.jit, compiler_options=QUICKLY)


# ------------------------------------------------------------------------------ methods
def here(x: Arrays) -> Any:
    """Parameters of the library, whose kernels have their outputs last."""
    layer = lambda w, b: {"w": jnp.asarray(x[w].T), "b": jnp.asarray(x[b])}
    return Pair(layer("w", "b"), layer("v", "c")) if "v" in x else layer("w", "b")


def there(params: Any) -> Arrays:
    """Parameters as `check.py` wants them; agents are the first axis, if there are."""
    turn = lambda p: (np.moveaxis(np.asarray(p["w"]), -1, -2), np.asarray(p["b"]))
    leaves = [
        v for p in (params if isinstance(params, Pair) else [params]) for v in turn(p)
    ]
    return dict(zip("wbvc", leaves, strict=False))


def squares(params: Any, batch: Any, key: Any) -> Any:
    """The gradient of the loss in `check.Task`, over examples of weight 1."""
    return value_and_grad(params, batch, key)[1]


def value_and_grad(params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """That loss too."""
    del key
    x, y, weight = batch

    def loss(p):
        of = lambda layer: x @ layer["w"] + layer["b"][None]
        left, right = p if isinstance(p, Pair) else (p, None)
        E, D = of(left) - y, of(right) if right else 0.0
        rows = jnp.mean(E**2 + 2 * E * D - D**2, axis=1)
        return jnp.sum(weight * rows) / jnp.sum(weight)

    value, g = jax.value_and_grad(loss)(params)
    return value, Pair(g.x, tree.scale(g.y, -1)) if isinstance(g, Pair) else g


def batches(task: Any, ids: Any, steps: int, rows: Any = None) -> tuple:
    """Arrays [clients, steps, rows, ...]; rows that a client lacks have weight 0.

    Of each client's `rows`, or of all.
    """
    most = max(map(len, rows or [X for X, _ in task.data]))

    def one(i: int) -> list[np.ndarray]:
        pad = lambda a: np.concatenate([a, np.zeros((most - len(a), a.shape[1]))])
        X, Y = (a[rows[i]] if rows else a for a in task.data[i])
        weight = (np.arange(most) < len(X)).astype(float)
        return [np.repeat(a[None], steps, axis=0) for a in (pad(X), pad(Y), weight)]

    return tuple(jnp.asarray(np.stack(v)) for v in zip(*map(one, ids), strict=True))


def of_round(task: Any, r: int) -> tuple:
    """Those of a round, or given rows of the same number in every step."""
    if not hasattr(task, "rows"):
        return batches(task, task.cohorts[r], task.steps)
    pairs = zip(task.cohorts[r], task.rows[r], strict=True)
    data = [[[a[at] for a in task.data[i]] for at in steps] for i, steps in pairs]
    x, y = (np.array([[step[j] for step in own] for own in data]) for j in (0, 1))
    return jnp.asarray(x), jnp.asarray(y), jnp.ones(x.shape[:3])


def rounds(
    build: Callable,
    weighted: bool = False,
    arrivals: Callable | None = None,
    own: tuple[str, ...] = (),
) -> Callable:
    """The rounds of an algorithm that `build` makes from the settings."""

    def run(task: Any) -> list[Arrays]:
        with jax.enable_x64(True):
            algorithm = build(task.hyper)
            objective = Objective(squares, value_and_grad=value_and_grad)
            if arrivals:
                algorithm = arrivals(task.hyper).executed(algorithm)
            N, key = len(task.sizes), jax.random.key(0)
            x0 = here(task.x0)
            state = engine.init(algorithm, x0, N, project=objective.project)
            if algorithm.prologue:
                start = engine.make_prologue(algorithm, objective, N, plans.mapped)
                first = jnp.arange(N), batches(task, range(N), 1), jnp.ones(N)
                state, _ = quick(start)(state, *first, key)
            step = quick(engine.make_round(algorithm, objective, N, plans.mapped))
            path = []
            for r, ids in enumerate(task.cohorts):
                sizes = [task.sizes[i] if weighted else 1 for i in ids]
                weights = jnp.asarray(sizes, float)
                given = jnp.array(ids, jnp.int32), of_round(task, r)
                starts = [jnp.array(task.starts[r], jnp.int32)] if arrivals else []
                state, _ = step(state, *given, weights, key, *starts)
                x = there(state.server.params)
                if own:
                    every = there(
                        params_of_clients(state.server.params, state.client_states)
                    )
                    x = {k: v for k, v in x.items() if {*own} != {k}}
                    x |= {f"own_{k}": every[k] for k in own}
                path.append(x)
            return path

    return run


def with_server(scale: Callable, *names: str) -> Callable:
    """FedAvg with a rule of the server that has these settings."""

    def build(h):
        rule = optax.chain(
            optax.scale(-1.0), optax.scale(-1.0), scale(**{n: h[n] for n in names})
        )
        return fm.fedavg(lr=h["lr"], server_lr=h["server_lr"], server_rule=rule)

    return build


exact = orthogonalize(polar)
of = lambda h, *names: {name: h[name] for name in names}


def align(h):
    rule = muon(h["momentum"], polar=polar, rest=optax.scale_by_adam(0.9, 0.95, 1e-10))
    return fm.fedmuon_align(**of(h, "lr", "align", "decay"), rule=rule)


def diloco(h):
    rule = optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(h["decay"]))
    server = optax.trace(h["outer_momentum"], nesterov=True)
    return fm.diloco(lr=h["lr"], rule=rule, server_lr=h["outer_lr"], server_rule=server)


def muloco(h):
    rates = {"server_lr": h["outer_lr"], "server_momentum": h["outer_momentum"]}
    return fm.muloco(**of(h, "lr", "momentum", "decay"), **rates, polar=polar)


def two(h: Any, name: str) -> Pair:
    """A setting of both players."""
    return Pair(h[f"{name}_x"], h[f"{name}_y"])


def guided(method: Callable, **more: Any) -> Callable:
    def build(h):
        past = lambda b: fm.core.after_first(1 - b)
        momentum = Pair(past(h["b_x"]), past(h["b_y"]))
        rates = {"lr": two(h, "lr"), "server_lr": two(h, "server_lr")}
        return method(**rates, momentum=momentum, **more)

    return build


def fedcomuon(h):
    past = {"momentum": 1 - h["beta"], "inner_momentum": 1 - h["alpha"]}
    bound = {"temperature": h["t"], "max_slope": 1e9}
    return fm.fedcomuon(lr=h["lr"], **past, **bound, polar=polar)


def fedcomuon_vr(h):
    past = {"momentum": 1 - h["rho"], "inner_momentum": 1 - h["alpha"]}
    bound = {"temperature": h["t"], "max_slope": h["C_f"], "clip_norm": h["C_g"]}
    return fm.fedcomuon_vr(lr=h["lr"], **past, **bound, polar=polar)


def fedasync(h):
    late = fm.staleness.polynomial(h["exponent"])
    return fm.fedasync(5, weight=h["weight"], staleness=late)


def fedbuff(h):
    return fm.buffered(5, 3, staleness=fm.staleness.polynomial(h["exponent"]))


def fedavg_top_k(h):
    return fm.compress(fm.fedavg(lr=h["lr"]), fm.top_k(h["share"]), feedback=1.0)


def ef21_muon(h):
    top, is_matrix = fm.top_k(h.get("share", 1.0)), lambda x: len(x.shape) > 1
    C = Compressor(
        lambda x, key: top.encode(x, key) if is_matrix(x) else x,
        lambda sent, like: top.decode(sent, like) if is_matrix(like) else sent,
    )
    C = C if "share" in h else fm.signs()
    both = {"compressor": C, "broadcast_compressor": C}
    return fm.ef21_muon(lr=h["lr"], momentum=1 - h["b"], polar=polar, **both)


def voted(name: str) -> Callable:
    exact = {} if name == "sign_vote" else {"polar": polar}
    method = getattr(fm, name)
    return rounds(lambda h: method(lr=h["lr"], momentum=1 - h["b"], **exact))


def majority(task: Any) -> Arrays:
    """A round of clients whose gradients are the messages; what is drawn is +1."""
    ones = lambda key, shape, dtype=bool: jnp.ones(shape, dtype)
    drawn = partial(mock.patch.object, jax.random, new=ones)
    n, objective = len(task.messages), Objective(lambda x, batch, key: batch)
    with jax.enable_x64(True), drawn("bernoulli"), drawn("rademacher"):
        algorithm, key = fm.sign_vote(lr=1.0), jax.random.key(0)
        x = {k: jnp.zeros(v.shape) for k, v in task.messages[0].items()}
        state = engine.init(algorithm, x, n, project=objective.project)
        given = {k: jnp.stack([m[k][None] for m in task.messages]) for k in x}
        step = quick(engine.make_round(algorithm, objective, n, plans.mapped))
        state, _ = step(state, jnp.arange(n), given, jnp.ones(n), key)
        return {k: -np.asarray(v) for k, v in state.server.params.items()}


# -------------------------------------------------------------------- without a server
def examples(params: Any, batch: Any, key: Any) -> Any:
    """The gradients of single examples."""
    row = lambda *row: squares(params, tuple(a[None] for a in row), key)
    return jax.vmap(row)(*batch)


def agents(build: Callable) -> Callable:
    def run(task: Any) -> list[Arrays]:
        with jax.enable_x64(True):
            objective, m = Objective(squares, example_grad=examples), len(task.sizes)
            mixer, key = gossip.dense(task.mixing), jax.random.key(0)
            parts = gossip_engine.make(build(task.hyper), objective, mixer, m)
            start, step = map(quick, parts)
            state, path = here(task.x0), []
            for t in range(task.iterations):
                rows = task.rows[t] if hasattr(task, "rows") else None
                batch = [a[:, 0] for a in batches(task, range(m), 1, rows)]
                state = (step if t else start)(state, tuple(batch), key)
                path.append(there(state.agents.params))
            return path

    return run


def dpmixsgd(h):
    method = gossip.dpmixsgd(two(h, "lr"), beta=h["beta"])
    mechanism = Mechanism(h["clip"], h["clip"], h["beta"], batch_size=4)
    return private(method, mechanism, 0.0)


# ------------------------------------------------------------------------------- rules
def optimizer(task: Any, rule: Any = None) -> list[Arrays]:
    """Muon or another rule; kernels have their outputs last."""
    h, turn = task.hyper, lambda v, a, b: np.moveaxis(np.asarray(v), a, b)
    with jax.enable_x64(True):
        here = lambda tree: {k: jnp.asarray(turn(v, 0, -1)) for k, v in tree.items()}
        rule = (
            rule(h)
            if rule
            else optax.chain(
                muon(h["momentum"], nesterov=True, shape_scale=jordan),
                optax.add_decayed_weights(h["weight_decay"]),
            )
        )
        x, path = here(task.x0), []
        state, update = rule.init(x), quick(rule.update)
        for g in task.gradients:
            u, state = update(here(g), state, x)
            x = {k: x[k] - h["lr"] * u[k] for k in x}
            path.append({k: turn(v, -1, 0) for k, v in x.items()})
        return path


normuon = lambda h: scale_by_normuon(h["momentum"], h["b2"], polar=polar)
adamuon = lambda h: scale_by_adamuon(h["momentum"], polar=polar)


# ------------------------------------------------------------------- rules of servers
def aggregate(
    rule: Callable, weighted: bool = False, compiled: Callable = quick
) -> Callable:
    def run(task: Any) -> Arrays:
        with jax.enable_x64(True):
            flat = [
                np.concatenate([v.ravel() for v in m.values()]) for m in task.messages
            ]
            weights = task.weights if weighted else np.ones(len(flat))
            ids, key = jnp.arange(len(flat)), jax.random.key(0)
            given = Messages(
                jnp.asarray(np.stack(flat)), jnp.asarray(weights), ids, key
            )
            out = compiled(rule(task.hyper))(given)
            mean = np.average(out.values, axis=0, weights=out.weight)
        first = task.messages[0]
        ends = np.cumsum([v.size for v in first.values()])[:-1]
        pieces = zip(first, np.split(mean, ends), strict=True)
        return {k: v.reshape(first[k].shape) for k, v in pieces}

    return run


def adapters(method: Callable, scaled: bool) -> Callable:
    """A round of clients that end at the messages, by a step of 1 along x - x_i."""

    def grad(params, batch, key):
        del key
        layer = params["layer"]
        pull = {k: layer[k] - batch[k] for k in ("a", "b")}
        return {"layer": {"kernel": jnp.zeros_like(layer["kernel"]), **pull}}

    def run(task: Any) -> Arrays:
        s = task.hyper["alpha"] / task.hyper["rank"]
        more = {"scale": s} if scaled else {}
        with jax.enable_x64(True):
            algorithm = method(lr=1.0, rule=optax.identity(), **more)
            layout = lambda m: {"a": m["A"].T, "b": m["B"].T}
            layers = [*map(layout, task.messages)]
            layer = {"kernel": jnp.asarray(task.w.T), **layers[0]}
            stack = lambda name: jnp.stack([m[name][None] for m in layers])
            given = {name: stack(name) for name in ("a", "b")}
            n, objective = len(layers), Objective(grad)
            state = engine.init(
                algorithm, {"layer": layer}, n, project=objective.project
            )
            step = engine.make_round(algorithm, objective, n, plans.mapped)
            weights, key = jnp.asarray(task.weights), jax.random.key(0)
            state, _ = quick(step)(state, jnp.arange(n), given, weights, key)
            after = state.server.params["layer"]
            return {"w": after["kernel"].T, "BA": (after["a"] @ after["b"]).T}

    return run


def clipping(h):
    """The clip of `ClientPrivacy`, message by message."""
    clip = jax.vmap(lambda row: clipped(h["tau"], row))
    return lambda messages: messages._replace(values=clip(messages.values))


unchanged = lambda messages: messages
IMPLEMENTATIONS = {
    "fedavg": rounds(lambda h: fm.fedavg(lr=h["lr"]), weighted=True),
    "fedprox": rounds(lambda h: fm.fedprox(**of(h, "lr", "mu"))),
    "scaffold": rounds(lambda h: fm.scaffold(**of(h, "lr", "server_lr"))),
    "fedadam": rounds(with_server(fm.transforms.scale_by_fedadam, "b1", "b2", "tau")),
    "fedyogi": rounds(with_server(fm.transforms.scale_by_fedyogi, "b1", "b2", "tau")),
    "fedadagrad": rounds(with_server(fm.transforms.scale_by_fedadagrad, "b1", "tau")),
    "fedmuon": rounds(
        lambda h: fm.fedmuon_unsynced(lr=h["lr"], momentum=1 - h["b"], polar=polar)
    ),
    "fedmuon_align": rounds(align),
    "fedmuon_correct": rounds(
        lambda h: fm.fedmuon_correct(
            lr=h["lr"], momentum=1 - h["b"], rule=by_rank(exact)
        )
    ),
    "local_muon": rounds(
        lambda h: fm.local_muon(**of(h, "lr", "momentum", "decay"), polar=polar)
    ),
    "local_muon_persistent": rounds(
        lambda h: fm.local_muon_persistent(
            lr=h["lr"], momentum=1 - h["b"], rule=by_rank(exact)
        )
    ),
    "diloco": rounds(diloco),
    "muloco": rounds(muloco),
    "fedcomuon": rounds(fedcomuon),
    "fedcomuon_vr": rounds(fedcomuon_vr),
    "local_sgda": rounds(lambda h: fm.minimax.local_sgda(lr=two(h, "lr"))),
    "fed_nsgda_m": rounds(guided(fm.minimax.fed_nsgda_m)),
    "fedmuon_da": rounds(guided(fm.minimax.fedmuon_da, polar=polar)),
    "fedasync": rounds(lambda h: fm.fedavg(lr=h["lr"]), arrivals=fedasync),
    "fedbuff": rounds(
        lambda h: fm.fedavg(**of(h, "lr", "server_lr")), arrivals=fedbuff
    ),
    "fedavg_top_k": rounds(fedavg_top_k, weighted=True),
    "ef21_muon": rounds(ef21_muon),
    "ef21_muon_signs": rounds(ef21_muon),
    **{k: voted(k) for k in ("sign_vote", "signmuon", "muonusign", "muonsign")},
    "fedper": rounds(
        lambda h: fm.keep_own(fm.fedavg(**of(h, "lr")), ["b"]), own=("b",)
    ),
    "ditto": rounds(
        lambda h: fm.ditto(fm.fedavg(lr=h["lr"]), **of(h, "personal_lr", "pull")),
        own=("w", "b"),
    ),
    "dsgd": agents(lambda h: gossip.dsgd(h["lr"])),
    "gradient_tracking": agents(lambda h: gossip.gradient_tracking(h["lr"])),
    "demuon": agents(lambda h: gossip.demuon(h["lr"], momentum=h["beta"], polar=polar)),
    "dpmixsgd": agents(dpmixsgd),
    "normuon": partial(optimizer, rule=normuon),
    "adamuon": partial(optimizer, rule=adamuon),
    "muon": optimizer,
    "muon_decay": optimizer,
    "muon_kernel": optimizer,
    "muon_rank": optimizer,
    "mean_by_examples": aggregate(lambda h: unchanged, weighted=True),
    "coordinate_median": aggregate(lambda h: aggregators.median()),
    "trimmed_mean": aggregate(lambda h: aggregators.trimmed_mean(int(h["f"]))),
    "krum": aggregate(lambda h: aggregators.krum(int(h["f"]))),
    "multi_krum": aggregate(lambda h: aggregators.krum(int(h["f"]), chosen=None)),
    "geometric_median": aggregate(
        lambda h: aggregators.geometric_median(1e-6, 500),
        compiled=lambda f: f,  # of 500 iterations
    ),
    "centered_clipping": aggregate(
        lambda h: aggregators.centered_clipping(h["tau"], int(h["rounds"]))
    ),
    "norm_clipping": aggregate(clipping),
    "majority": majority,
    "fedit": adapters(fm.fedit, scaled=False),
    "fedex_lora": adapters(fm.fedex_lora, scaled=True),
    "flexlora": adapters(fm.flexlora, scaled=False),
}

"""Public federated packages whose server alone is judged: rules and aggregation.

Clients of these methods are plain SGD in NumPy.
"""

import importlib
import itertools
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any

from conformance.adapters.entry import FIND, Arrays, Entry, package

Ends = dict[int, Arrays]  # of clients


def local(task: Any, i: int, x: Arrays) -> Arrays:
    for _ in range(task.steps):
        g = task.grad(i, x)
        x = {k: x[k] - task.hyper["lr"] * g[k] for k in x}
    return x


def rounds(build: Callable) -> Callable:
    """`build(module, task)` is the server: x, ends of clients -> x."""

    def run(task: Any, module: Any) -> Iterator[Arrays]:
        server, x = build(module, task), task.x0
        for cohort in task.cohorts:
            x = server(x, {i: local(task, i, x) for i in cohort})
            yield x

    return run


def aggregate(build: Callable) -> Callable:
    """`build(module, task)` is the rule: messages, weights -> their aggregate."""

    def run(task: Any, module: Any) -> Arrays:
        return build(module, task)(task.messages, [*map(float, task.weights)])

    return run


# ------------------------------------------------------------------------------- flwr
ADAM = {"eta": "server_lr", "beta_1": "b1", "beta_2": "b2", "tau": "tau"}


def flower(
    name: str, names: dict | None = None, given: Callable = lambda h: {}
) -> Callable:
    """A strategy, whose arguments are settings of these names."""

    def strategy(module: Any, task: Any) -> tuple[Any, Callable]:
        from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        logging.getLogger("flwr").setLevel(logging.ERROR)
        ids = TaskIdentity._run_id, TaskIdentity._task_id, TaskIdentity._node_id
        if None in ids:  # outside of a run
            TaskIdentity._run_id = TaskIdentity._task_id = TaskIdentity._node_id = 1
        more = {k: task.hyper[v] for k, v in (names or {}).items()}
        one = getattr(module, name)(**more, **given(task))
        number = itertools.count(1)

        def rule(messages: list[Arrays], weights: list[float]) -> Arrays:
            replies = []
            for arrays, weight in zip(messages, weights, strict=True):
                packed = ArrayRecord({k: Array(v) for k, v in arrays.items()})
                examples = MetricRecord({"num-examples": float(weight)})
                content = RecordDict({"arrays": packed, "metrics": examples})
                reply = Message(content=content, dst_node_id=1, message_type="train")
                replies.append(reply)
            arrays, _ = one.aggregate_train(next(number), replies)
            return {k: v.numpy() for k, v in arrays.items()}

        return one, rule

    def build(module, task):
        one, rule = strategy(module, task)

        def server(x: Arrays, ends: Ends) -> Arrays:
            one.current_arrays = x
            return rule([*ends.values()], [task.sizes[i] for i in ends])

        return server

    def run(task: Any, module: Any) -> Any:
        if hasattr(task, "messages"):
            return aggregate(lambda *given: strategy(*given)[1])(task, module)
        return rounds(build)(task, module)

    return run


# ------------------------------------------------------------------------------ appfl
def appfl(name: str, weights: str = "sample_size") -> Callable:
    def build(module, task):
        import torch

        OmegaConf = importlib.import_module("omegaconf").OmegaConf
        h = task.hyper
        settings = {
            "client_weights_mode": weights,
            "server_learning_rate": h.get("server_lr", 1.0),
            "server_adapt_param": h.get("tau", 1e-3),
            "server_momentum_param_1": h.get("b1", 0.9),
            "server_momentum_param_2": h.get("b2", 0.99),
        }
        tensors = lambda x: {k: torch.tensor(v) for k, v in x.items()}
        model = torch.nn.ParameterDict(tensors(task.x0))
        logger = logging.getLogger("appfl")
        one = getattr(module, name)(model, OmegaConf.create(settings), logger)
        one.client_sample_size = dict(enumerate(task.sizes))

        def server(x: Arrays, ends: Ends) -> Arrays:
            after = one.aggregate({i: tensors(end) for i, end in ends.items()})
            return {k: v.numpy().copy() for k, v in after.items()}

        return server

    return rounds(build)


# -------------------------------------------------------------------- blazefl, nanofed
def blazefl(module: Any, task: Any) -> Callable:
    def rule(messages: list[Arrays], weights: list[float]) -> Arrays:
        import torch

        handler = module.FedAvgBaseServerHandler
        mean = lambda k: handler.aggregate(
            [torch.tensor(m[k]) for m in messages], weights
        )
        return {k: mean(k).numpy() for k in messages[0]}

    return rule


def nanofed(module: Any, task: Any) -> Callable:
    def rule(messages: list[Arrays], weights: list[float]) -> Arrays:
        import torch

        tensors = lambda m: {k: torch.tensor(v) for k, v in m.items()}
        updates = [
            {
                "model_state": tensors(m),
                "client_id": str(i),
                "round_number": 0,
                "metrics": {"num_samples": weight},
            }
            for i, (m, weight) in enumerate(zip(messages, weights, strict=True))
        ]
        model = torch.nn.ParameterDict(tensors(messages[0]))
        module.FedAvgAggregator().aggregate(model, updates)
        return {k: v.detach().numpy() for k, v in model.items()}

    return rule


# ------------------------------------------------------------------------- fedn, flsim
class Queue:
    """What an aggregator of FEDn asks for updates and their models."""

    def __init__(self, x: list, updates: list[tuple[list, float]]):
        self.model_updates, self.x, self.left = self, x, updates

    def empty(self) -> bool:
        return not self.left

    def next_model_update(self) -> Any:
        arrays, examples = self.left.pop(0)
        named = {"model_id": "0", "model_update_id": "1"}
        return types.SimpleNamespace(arrays=arrays, examples=examples, **named)

    def load_model_update(self, update: Any, helper: Any) -> tuple:
        return update.arrays, {"num_examples": update.examples}

    def load_model(self, helper: Any, model_id: str) -> list:
        return self.x


def fedn(file: str, **more: Any) -> Callable:
    def build(module, task):
        where = f"fedn.network.combiner.aggregators.{file}"
        aggregator = importlib.import_module(where).Aggregator(None)
        parameters = importlib.import_module("fedn.utils.parameters").Parameters
        h = task.hyper
        given = {"learning_rate": "server_lr", "beta1": "b1", "beta2": "b2"}
        given = {k: h[v] for k, v in {**given, "tau": "tau"}.items() if v in h}
        given = {"parameters": parameters({**more, **given})} if more else {}

        def server(x: Arrays, ends: Ends) -> Arrays:
            updates = [([*end.values()], task.sizes[i]) for i, end in ends.items()]
            aggregator.update_handler = Queue([*x.values()], updates)
            after, _ = aggregator.combine_models(module.Helper(), False, **given)
            return dict(zip(x, after, strict=True))

        return server

    return rounds(build)


def flsim(name: str, **names: str) -> Callable:
    """An optimizer of FLSim's server, after its weighted average."""

    def build(module, task):
        import torch

        def model(x: Arrays) -> Any:
            one = torch.nn.Linear(4, 6).double()
            with torch.no_grad():
                one.weight.copy_(torch.tensor(x["w"]))
                one.bias.copy_(torch.tensor(x["b"]))
            return one

        aggregation = importlib.import_module("flsim.servers.aggregator")
        x, kind = model(task.x0), aggregation.AggregationType.WEIGHTED_AVERAGE
        given = {k: task.hyper[v] for k, v in names.items()}
        optimizer = getattr(module, name)(model=x, **given)
        aggregator = aggregation.Aggregator(x, kind)

        def server(now: Arrays, ends: Ends) -> Arrays:
            aggregator.zero_weights()
            for i, end in ends.items():
                delta = model({k: now[k] - end[k] for k in now})
                aggregator.apply_weight_to_update(delta, task.sizes[i])
                aggregator.add_update(delta, task.sizes[i])
            mean = aggregator.aggregate()
            for p, d in zip(x.parameters(), mean.parameters(), strict=True):
                p.grad = d.detach().clone()
            optimizer.step()
            array = lambda p: p.detach().numpy().copy()
            return {"w": array(x.weight), "b": array(x.bias)}

        return server

    return rounds(build)


# ------------------------------------------------------------------------- the packages
f_of_n = lambda task: int(task.hyper["f"])
PACKAGES = (
    package(
        "flwr",
        "flwr.serverapp.strategy",
        "1.42.0",
        Entry("FedAvg", "fedavg mean_by_examples", flower("FedAvg")),
        Entry(
            "FedAdam",
            "fedadam",
            flower("FedAdam", ADAM),
            "deliberate: a comment cites the bias correction of Kingma and Ba; it "
            "is a step ahead, and v begins at 0: "
            + FIND.format("flwr_fedadam.md", "`fedadam.py:153, 165-166`"),
        ),
        Entry(
            "FedYogi",
            "fedyogi",
            flower("FedYogi", ADAM),
            "v begins at 0, `fedyogi.py:153`",
        ),
        Entry(
            "FedAdagrad",
            "fedadagrad",
            flower("FedAdagrad", {"eta": "server_lr", "tau": "tau"}),
            "v begins at 0, `fedadagrad.py:147`",
        ),
        Entry("Krum", "krum", flower("Krum", {"num_malicious_nodes": "f"})),
        Entry(
            "MultiKrum, the best n - f",
            "multi_krum",
            flower(
                "MultiKrum",
                {"num_malicious_nodes": "f"},
                lambda t: {"num_nodes_to_select": len(t.messages) - f_of_n(t)},
            ),
            "documented: the chosen are weighted by `weighted_by_key`, a number "
            "that each client reports of itself, `multikrum.py:149-152`",
        ),
        Entry("FedMedian", "coordinate_median", flower("FedMedian")),
        Entry(
            "FedTrimmedAvg, beta = f / n",
            "trimmed_mean",
            flower(
                "FedTrimmedAvg", given=lambda t: {"beta": f_of_n(t) / len(t.messages)}
            ),
        ),
    ),
    package(
        "appfl",
        "appfl.algorithm.aggregator",
        "1.12.0",
        Entry("FedAvgAggregator", "fedavg", appfl("FedAvgAggregator")),
        Entry(
            "FedAvgAggregator, default weights",
            "fedavg",
            appfl("FedAvgAggregator", "equal"),
            "documented: `client_weights_mode` is `equal` unless set, "
            "`fedavg_aggregator.py:37-39`",
        ),
        Entry("FedAdamAggregator", "fedadam", appfl("FedAdamAggregator")),
        Entry("FedYogiAggregator", "fedyogi", appfl("FedYogiAggregator")),
        Entry("FedAdagradAggregator", "fedadagrad", appfl("FedAdagradAggregator")),
    ),
    package(
        "fedn",
        "fedn.utils.helpers.plugins.numpyhelper",
        "0.33.0",
        Entry("fedavg", "fedavg", fedn("fedavg")),
        Entry("fedopt, adam", "fedadam", fedn("fedopt", serveropt="adam")),
        Entry("fedopt, yogi", "fedyogi", fedn("fedopt", serveropt="yogi")),
        Entry("fedopt, adagrad", "fedadagrad", fedn("fedopt", serveropt="adagrad")),
    ),
    package(
        "blazefl",
        "blazefl.contrib",
        "2.0.3",
        Entry("FedAvgBaseServerHandler", "mean_by_examples", aggregate(blazefl)),
    ),
    package(
        "nanofed",
        "nanofed.server.aggregator",
        "0.1.4",
        Entry("FedAvgAggregator", "mean_by_examples", aggregate(nanofed)),
    ),
    package(
        "flsim",
        "flsim.optimizers.server_optimizers",
        "0.1.0",
        Entry("FedAvgOptimizer", "fedavg", flsim("FedAvgOptimizer")),
        Entry(
            "FedAdamOptimizer",
            "fedadam",
            flsim(
                "FedAdamOptimizer", lr="server_lr", beta1="b1", beta2="b2", eps="tau"
            ),
            "Adam of PyTorch, `server_optimizers.py:124`",
        ),
    ),
)

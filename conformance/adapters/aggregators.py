"""More public federated packages whose server alone is judged: aggregators."""

import functools
import importlib
import itertools
import types
from collections.abc import Callable
from typing import Any

from conformance.adapters.entry import FIND, Arrays, Entry, package
from conformance.adapters.servers import Ends, aggregate, rounds


def nvflare(module: Any, task: Any) -> Callable:
    def rule(messages: list[Arrays], weights: list[float]) -> Arrays:
        helper = module.WeightedAggregationHelper()
        for i, (arrays, weight) in enumerate(zip(messages, weights, strict=True)):
            helper.add(arrays, weight, f"client {i}", 0)
        return helper.get_result()

    return rule


def openfl(name: str) -> Callable:
    """An aggregation function of OpenFL, array by array."""

    def build(module, task):
        rule = getattr(module, name)()
        local_tensor = importlib.import_module("openfl.utilities.types").LocalTensor

        def of_messages(messages: list[Arrays], weights: list[float]) -> Arrays:
            share = [w / sum(weights) for w in weights]
            given = lambda k: [
                local_tensor(f"client {i}", m[k], share[i])
                for i, m in enumerate(messages)
            ]
            return {k: rule(given(k), iter(()), k, 0, ()) for k in messages[0]}

        return of_messages

    return aggregate(build)


def openfl_adaptive(name: str, *names: str) -> Callable:
    def build(module, task):
        h = task.hyper
        settings = {"learning_rate": h["server_lr"], "epsilon": h["tau"]}
        if names:
            settings["betas"] = tuple(h[n] for n in names)
        else:
            settings["initial_accumulator_value"] = h["tau"] ** 2
        params = {k: v.copy() for k, v in task.x0.items()}
        rule = getattr(module, name)(params=params, **settings)
        local_tensor = importlib.import_module("openfl.utilities.types").LocalTensor
        number = itertools.count()

        def server(x: Arrays, ends: Ends) -> Arrays:
            r = next(number)
            n = sum(task.sizes[i] for i in ends)
            after = {}
            for k, v in x.items():
                tensors = [
                    local_tensor(str(i), end[k], task.sizes[i] / n)
                    for i, end in ends.items()
                ]
                tags = ("aggregated" if r else "model",)
                record = {"round": r, "tensor_name": k, "tags": tags, "nparray": v}
                after[k] = rule(tensors, iter([record]), k, r, ()).copy()
            return after

        return server

    return rounds(build)


def chorus(name: str) -> Callable:
    """A rule for adapters."""

    def run(task: Any, module: Any) -> Arrays:
        import torch

        a, b = "layer.lora_A.weight", "layer.lora_B.weight"
        tensor = functools.partial(torch.tensor, dtype=torch.float32)
        deltas = [{a: tensor(m["A"]), b: tensor(m["B"])} for m in task.messages]
        rule = getattr(module, name)()
        after = rule.aggregate(deltas, [*map(float, task.weights)])
        return {"w": task.w, "BA": (after[b] @ after[a]).numpy()}

    return run


# ------------------------------------------------------------------------- p2pfl, fedml
def p2pfl(file: str, name: str, **names: str) -> Callable:
    """An aggregator of P2PFL, for messages or for rounds."""

    def build(module, task):
        aggregation = importlib.import_module(f"{module.__name__}.{file}")
        given = {k: task.hyper[v] for k, v in names.items()}
        one = getattr(aggregation, name)(**given)
        one.set_addr("server")

        class Model:
            def __init__(self, arrays, examples):
                self.arrays, self.examples = arrays, examples

            def get_parameters(self):
                return self.arrays

            def get_num_samples(self):
                return self.examples

            def get_contributors(self):
                return ["client"]

            def build_copy(self, params, **more):
                return Model(params, 1)

        def rule(messages: list[Arrays], weights: list[float]) -> Arrays:
            models = [
                Model([*m.values()], n) for m, n in zip(messages, weights, strict=True)
            ]
            after = one.aggregate(models).get_parameters()
            return dict(zip(messages[0], after, strict=True))

        return rule

    def server(module, task):
        rule = build(module, task)
        rule([task.x0], [1.0])  # it takes its first aggregate for the model
        return lambda x, ends: rule([*ends.values()], [task.sizes[i] for i in ends])

    def run(task: Any, module: Any) -> Any:
        one = hasattr(task, "messages")
        return (aggregate(build) if one else rounds(server))(task, module)

    return run


def fedml(file: str, name: str, settings: Callable = lambda task: {}) -> Callable:
    """A defense of FedML, before or in place of its weighted mean."""

    def build(module, task):
        import torch

        where = importlib.import_module(f"fedml.core.security.defense.{file}")
        operator = importlib.import_module("fedml.ml.aggregator.agg_operator")
        simulation = {"training_type": "simulation", "backend": "sp"}
        config = types.SimpleNamespace(
            federated_optimizer="FedAvg",
            using_gpu=False,
            **simulation,
            **settings(task),
        )
        one = getattr(where, name)(config)
        mean = operator.torch_aggregator

        def rule(messages: list[Arrays], weights: list[float]) -> Arrays:
            tensors = lambda m: {k: torch.tensor(v) for k, v in m.items()}
            given = [(w, tensors(m)) for w, m in zip(weights, messages, strict=True)]
            if "defend_on_aggregation" in vars(type(one)):
                after = one.defend_on_aggregation(given)
            else:
                left = one.defend_before_aggregation(given)
                after = mean(config, left, sum(n for n, _ in left))
            return {k: v.numpy() for k, v in after.items()}

        return rule

    return aggregate(build)


# ------------------------------------------------------------------------- the packages
RATES = {"eta": "server_lr", "beta_1": "b1", "tau": "tau"}
PACKAGES = (
    package(
        "nvflare",
        "nvflare.app_common.aggregators.weighted_aggregation_helper",
        "2.9.0",
        Entry("WeightedAggregationHelper", "mean_by_examples", aggregate(nvflare)),
    ),
    package(
        "openfl",
        "openfl.interface.aggregation_functions",
        "1.9",
        Entry("WeightedAverage", "mean_by_examples", openfl("WeightedAverage")),
        Entry("Median", "coordinate_median", openfl("Median")),
        Entry(
            "GeometricMedian",
            "geometric_median",
            openfl("GeometricMedian"),
            FIND.format("openfl_geometric_median.md", "`geometric_median.py:49`"),
        ),
        Entry(
            "AdamAdaptiveAggregation",
            "fedadam",
            openfl_adaptive("AdamAdaptiveAggregation", "b1", "b2"),
            "its optimizer corrects bias, `numpy/adam_optimizer.py:156-167`",
        ),
        Entry(
            "YogiAdaptiveAggregation",
            "fedyogi",
            openfl_adaptive("YogiAdaptiveAggregation", "b1", "b2"),
            FIND.format("openfl_yogi.md", "`yogi_adaptive_aggregation.py:55`"),
        ),
        Entry(
            "AdagradAdaptiveAggregation, begun at tau^2",
            "fedadagrad",
            openfl_adaptive("AdagradAdaptiveAggregation"),
        ),
    ),
    package(
        "p2pfl",
        "p2pfl.learning.aggregators",
        "0.4.4",
        Entry("FedAvg", "fedavg", p2pfl("fedavg", "FedAvg")),
        Entry("FedMedian", "coordinate_median", p2pfl("fedmedian", "FedMedian")),
        Entry(
            "Krum",
            "krum",
            p2pfl("krum", "Krum"),
            "it takes all others for neighbors, and does not square distances: "
            + FIND.format("p2pfl_krum.md", "`krum.py:72-80`"),
        ),
        Entry(
            "FedAdam",
            "fedadam",
            p2pfl("fedopt.fedadam", "FedAdam", beta_2="b2", **RATES),
            "a comment cites the bias correction of Kingma and Ba; v begins at 0, "
            "`fedadam.py:80, 94`",
        ),
        Entry(
            "FedYogi",
            "fedyogi",
            p2pfl("fedopt.fedyogi", "FedYogi", beta_2="b2", **RATES),
            "v begins at 0, `fedyogi.py:80`",
        ),
        Entry(
            "FedAdagrad",
            "fedadagrad",
            p2pfl("fedopt.fedadagrad", "FedAdagrad", **RATES),
            "v begins at 0, `fedadagrad.py:69`",
        ),
    ),
    package(
        "fedml",
        "fedml",
        "0.9.6",
        Entry(
            "KrumDefense",
            "krum",
            fedml(
                "krum_defense",
                "KrumDefense",
                lambda t: {"byzantine_client_num": int(t.hyper["f"])},
            ),
        ),
        Entry(
            "CoordinateWiseMedianDefense",
            "coordinate_median",
            fedml("coordinate_wise_median_defense", "CoordinateWiseMedianDefense"),
            "the lower of the two in the middle, as `torch.median`, "
            "`coordinate_wise_median_defense.py:33`",
        ),
        Entry(
            "CoordinateWiseTrimmedMeanDefense, beta = f / n",
            "trimmed_mean",
            fedml(
                "coordinate_wise_trimmed_mean_defense",
                "CoordinateWiseTrimmedMeanDefense",
                lambda t: {"beta": t.hyper["f"] / len(t.messages)},
            ),
            FIND.format("fedml_trimmed_mean.md", "`common/utils.py:221, 230-232`"),
        ),
        Entry(
            "RFADefense",
            "geometric_median",
            fedml("RFA_defense", "RFADefense"),
            FIND.format(
                "fedml_rfa.md", "`RFA_defense.py:26-30`, `common/utils.py:67-77`"
            ),
        ),
    ),
    package(
        "chorus-fl",
        "chorus.server.aggregation",
        "0.1.0",
        Entry("FedAvg", "fedit", chorus("FedAvg")),
        Entry(
            "FedExLoRA",
            "fedex_lora",
            chorus("FedExLoRA"),
            "documented: a truncated SVD, and the residual is left to the caller; "
            "the paper that it cites averages A and B, and adds the residual, "
            "`server/aggregation.py`",
        ),
        Entry("FedExLoRA", "flexlora", chorus("FedExLoRA")),
    ),
)

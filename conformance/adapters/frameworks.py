"""Public federated frameworks that simulate whole rounds."""

import importlib
import itertools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conformance.adapters.entry import FIND, Arrays, Entry, package
from conformance.adapters.methods import examples, layer, values
from conformance.adapters.servers import rounds


# ---------------------------------------------------------------------------------- pfl
def pfl(algorithm: Callable, server: Callable | None = None, weighted: bool = True):
    """`algorithm(get, task)` is one of pfl, with its settings.

    `server(parameters, settings)` is the central optimizer, by default SGD of rate 1.
    """

    def run(task: Any, module: Any) -> Iterator[Arrays]:
        import torch

        get = lambda name: importlib.import_module(f"pfl.{name}")
        model = layer(task.x0)
        model.loss = lambda x, y, eval=False: torch.nn.functional.mse_loss(model(x), y)
        model.metrics = lambda x, y, eval=False: {}
        rule = server or (lambda p, h: torch.optim.SGD(p, 1.0))
        trained = get("model.pytorch").PyTorchModel(
            model, torch.optim.SGD, rule(model.parameters(), task.hyper)
        )
        ids = itertools.chain.from_iterable(task.cohorts)
        clients = get("data").FederatedDataset(
            lambda i: get("data.dataset").Dataset(examples(task, i), user_id=str(i)),
            lambda: next(ids),
        )
        weights = [get("aggregate.weighting").WeightByDatapoints()] * weighted
        backend = get("aggregate.simulate").SimulatedBackend(clients, None, weights)
        path: list[Arrays] = []

        Callback: Any = get("callback.base").TrainingProcessCallback

        class Keep(Callback):
            def after_central_iteration(self, metrics, model_now, *more, **named):
                path.append(values(model))
                return False, get("metrics").Metrics()

        local = get("hyperparam.base").NNTrainHyperParams(
            None, task.steps, task.hyper["lr"]
        )
        shared = {
            "central_num_iterations": len(task.cohorts),
            "evaluation_frequency": 10**6,
            "train_cohort_size": len(task.cohorts[0]),
            "val_cohort_size": None,
        }
        one, settings = algorithm(get, task, shared)
        one.run(settings, backend, trained, local, None, [Keep()])
        return iter(path)

    return run


def averaging(get: Callable, task: Any, shared: dict) -> tuple:
    base = get("algorithm.base").NNAlgorithmParams(**shared)
    return get("algorithm.federated_averaging").FederatedAveraging(), base


def proximal(get: Callable, task: Any, shared: dict) -> tuple:
    where = get("algorithm.fedprox")
    return where.FedProx(), where.FedProxParams(**shared, mu=task.hyper["mu"])


def scaffold(option: int) -> Callable:
    def build(get: Callable, task: Any, shared: dict) -> tuple:
        where, store = get("algorithm.scaffold"), get("data.user_state")
        return where.SCAFFOLD(), where.SCAFFOLDParams(
            **shared,
            population=len(task.sizes),
            use_gradient_as_control_variate=option == 1,
            user_state_storage=store.InMemoryUserStateStorage(),
        )

    return build


def rate(parameters: Any, h: dict) -> Any:
    import torch

    return torch.optim.SGD(parameters, h["server_lr"])


# ----------------------------------------------------------------------------- declearn
def declearn_mean(module: Any, task: Any) -> Callable:
    Vector = importlib.import_module("declearn.model.sklearn").NumpyVector

    def server(x: Arrays, ends: dict[int, Arrays]) -> Arrays:
        one = module.AveragingAggregator()
        send = lambda end: one.prepare_for_sharing(Vector(x) - Vector(end), task.steps)
        first, *others = map(send, ends.values())
        return (Vector(x) - one.finalize_updates(sum(others, first))).coefs

    return server


def declearn_scaffold(task: Any, module: Any) -> Iterator[Arrays]:
    get = lambda name: importlib.import_module(f"declearn.{name}")
    Vector, modules = get("model.sklearn").NumpyVector, get("optimizer.modules")
    made = lambda rate, name: get("optimizer").Optimizer(
        task.hyper[rate], modules=[getattr(modules, name)()]
    )
    clients = [made("lr", "ScaffoldClientModule") for _ in task.sizes]
    server, x = made("server_lr", "ScaffoldServerModule"), Vector(task.x0)
    one = module.AveragingAggregator()
    for cohort in task.cohorts:
        updates, variates = [], []
        for i in cohort:
            clients[i].process_aux_var(server.collect_aux_var())
            y = x
            for _ in range(task.steps):
                g = Vector(task.grad(i, y.coefs))
                y = y + clients[i].compute_updates_from_gradients(None, g)
            updates.append(one.prepare_for_sharing(x - y, task.steps))
            variates.append(clients[i].collect_aux_var()["scaffold"])
        server.process_aux_var({"scaffold": sum(variates[1:], variates[0])})
        mean = one.finalize_updates(sum(updates[1:], updates[0]))
        x = x + server.compute_updates_from_gradients(None, mean)
        yield x.coefs


# ---------------------------------------------------------------------------- substrafl
def substrafl(module: Any, task: Any) -> Callable:
    schemas = importlib.import_module("substrafl.strategies.schemas")
    state, name = schemas.FedAvgSharedState, schemas.StrategyName.FEDERATED_AVERAGING
    one = module.FedAvg(types.SimpleNamespace(strategies=[name]))

    def server(x: Arrays, ends: dict[int, Arrays]) -> Arrays:
        moved = lambda end: [end[k] - x[k] for k in x]
        states = [
            state(n_samples=task.sizes[i], parameters_update=moved(end))
            for i, end in ends.items()
        ]
        mean = one.avg_shared_states(shared_states=states, _skip=True)
        pairs = zip(x, mean.avg_parameters_update, strict=True)
        return {k: x[k] + v for k, v in pairs}

    return server


# ---------------------------------------------------------------------------- fl4health
def fl4health_scaffold(task: Any, module: Any) -> Iterator[Arrays]:
    import torch

    flwr = importlib.import_module("flwr.common")
    clients = importlib.import_module("fl4health.clients.scaffold_client")
    Client: Any = clients.ScaffoldClient

    class Local(Client):
        number = 0
        get_model = lambda self, config: layer(task.x0)
        get_criterion = lambda self, config: torch.nn.MSELoss()
        get_optimizer = lambda self, config: torch.optim.SGD(
            self.model.parameters(), task.hyper["lr"]
        )

        def get_data_loaders(self, config):
            data = torch.utils.data.TensorDataset(*examples(task, self.number))
            loader = torch.utils.data.DataLoader(data, batch_size=len(data))
            return loader, loader

    first = [v.astype("float32") for v in (task.x0["w"], task.x0["b"])]
    server = module.Scaffold(
        initial_parameters=flwr.ndarrays_to_parameters(first),
        model=layer(task.x0),
        fraction_fit=len(task.cohorts[0]) / len(task.sizes),
        learning_rate=task.hyper["server_lr"],
    )
    here = [Local(Path(), [], torch.device("cpu")) for _ in task.sizes]
    sent = server.initial_parameters
    for r, cohort in enumerate(task.cohorts, 1):
        given = {"current_server_round": r, "local_steps": task.steps}
        replies = []
        for i in cohort:
            here[i].number = i
            values, n, _ = here[i].fit(flwr.parameters_to_ndarrays(sent), given)
            back = flwr.ndarrays_to_parameters(values)
            fine = flwr.Status(flwr.Code.OK, "")
            replies.append((None, flwr.FitRes(fine, back, n, {})))
        sent, _ = server.aggregate_fit(r, replies, [])
        yield dict(zip("wb", flwr.parameters_to_ndarrays(sent), strict=False))


PACKAGES = (
    package(
        "pfl",
        "pfl",
        "0.6.0",
        Entry("FederatedAveraging, WeightByDatapoints", "fedavg", pfl(averaging)),
        Entry(
            "FederatedAveraging",
            "fedavg",
            pfl(averaging, weighted=False),
            "weights are an option",
        ),
        Entry("FedProx", "fedprox", pfl(proximal, weighted=False)),
        Entry(
            "SCAFFOLD, option II",
            "scaffold",
            pfl(scaffold(2), rate, weighted=False),
            FIND.format("pfl_scaffold.md", "`algorithm/scaffold.py:144, 157-158`"),
        ),
        Entry(
            "SCAFFOLD, option I",
            "scaffold",
            pfl(scaffold(1), rate, weighted=False),
            "the same, and clients share a buffer of variates: "
            + FIND.format("pfl_scaffold.md", "`model/pytorch.py:243, 252`"),
        ),
    ),
    package(
        "declearn",
        "declearn.aggregator",
        "2.9.1",
        Entry(
            "AveragingAggregator",
            "fedavg",
            rounds(declearn_mean),
            "documented: weights are numbers of steps, `_avg.py:60-62`",
        ),
        Entry(
            "ScaffoldClientModule and ScaffoldServerModule",
            "scaffold",
            declearn_scaffold,
            "documented: the mean over clients that took part so far, "
            "`optimizer/modules/_scaffold.py`",
        ),
    ),
    package(
        "fl4health",
        "fl4health.strategies.scaffold",
        "0.4.2",
        Entry(
            "Scaffold and ScaffoldClient",
            "scaffold",
            fl4health_scaffold,
            FIND.format(
                "fl4health_scaffold.md", "`clients/scaffold_client.py:130-135`"
            ),
        ),
    ),
    package(
        "substrafl",
        "substrafl.strategies",
        "1.0.0",
        Entry("FedAvg", "fedavg", rounds(substrafl)),
    ),
)

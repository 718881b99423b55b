"""Public federated packages that train by themselves: whole methods."""

import importlib
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from conformance.adapters.entry import FIND, Arrays, Entry, package


# ------------------------------------------------------------------------------ PyTorch
def layer(x: Arrays) -> Any:
    """The problem's model, at x."""
    import torch

    model = torch.nn.Linear(4, 6)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(x["w"]))
        model.bias.copy_(torch.tensor(x["b"]))
    return model


def values(model: Any) -> Arrays:
    array = lambda v: v.detach().cpu().numpy().copy()
    return {"w": array(model.weight), "b": array(model.bias)}


def examples(task: Any, i: int) -> list:
    import torch

    return [torch.tensor(a, dtype=torch.float32) for a in task.data[i]]


def fluke(
    file: str, client: str, server: str, names: dict | None = None, **fixed: Any
) -> Callable:
    """Clients and a server of fluke; classes that `file` lacks are the usual ones."""

    def run(task: Any, module: Any) -> Iterator[Arrays]:
        import torch

        get = importlib.import_module
        algorithm = get(f"fluke.algorithms.{file}")
        of_client = getattr(algorithm, client, get("fluke.client").Client)
        of_server = getattr(algorithm, server, get("fluke.server").Server)
        module.FlukeENV().set_device("cpu")
        given = {k: task.hyper[v] for k, v in (names or {}).items()}
        of_one = {k: given.pop(k) for k in ("mu",) if k in given}
        clients = []
        for i in range(len(task.sizes)):
            X, Y = examples(task, i)
            loader = get("fluke.data").FastDataLoader(
                X, Y, num_labels=6, batch_size=len(X), skip_singleton=False
            )
            rule = get("fluke.config").OptimizerConfigurator(
                {"name": torch.optim.SGD, "lr": task.hyper["lr"]},
                {"name": "StepLR", "step_size": 10**6, "gamma": 1.0},
            )
            loss = torch.nn.MSELoss()
            clients.append(of_client(i, loader, None, rule, loss, task.steps, **of_one))
        one = of_server(layer(task.x0), None, clients, **given, **fixed)
        for c in clients:
            c.set_channel(one.channel)
        for number, cohort in enumerate(task.cohorts, 1):
            chosen = [clients[i] for i in cohort]
            one.broadcast_model(chosen)
            for c in chosen:
                c.local_update(number)
            one.aggregate(chosen, one.receive_client_models(chosen, state_dict=False))
            yield values(one.model)

    return run


def fedlab(
    file: str, handler: str, trainer: str, local: dict | None = None, **server: str
) -> Callable:
    def run(task: Any, module: Any) -> Iterator[Arrays]:
        import torch

        find = lambda name, *files: next(
            getattr(m, name)
            for f in files
            if hasattr(m := importlib.import_module(f"{module.__name__}.{f}"), name)
        )
        n = len(task.sizes)
        share = len(task.cohorts[0]) / n
        one = find(handler, file, "basic_server")(
            layer(task.x0), len(task.cohorts), share
        )
        one.num_clients = n
        if server:
            one.setup_optim(**{k: task.hyper[v] for k, v in server.items()})
        clients = find(trainer, file, "basic_client")(layer(task.x0), n)
        batches = lambda i, size=None: [examples(task, i)]
        clients.setup_dataset(types.SimpleNamespace(get_dataloader=batches))
        more = {k: task.hyper[v] for k, v in (local or {}).items()}
        clients.setup_optim(task.steps, 1000, task.hyper["lr"], **more)
        clients.criterion = torch.nn.MSELoss()
        for cohort in task.cohorts:
            clients.local_process(one.downlink_package, cohort)
            for pack in clients.uplink_package:
                one.load(pack)
            yield values(one._model)

    return run


# --------------------------------------------------------------------- fedjax of Google
class Whole:
    """A client that gives all of its examples in each of its steps."""

    def __init__(self, X: np.ndarray, Y: np.ndarray, steps: int) -> None:
        self.all, self.steps = {"x": X, "y": Y}, steps

    def __len__(self) -> int:
        return len(self.all["x"])

    def shuffle_repeat_batch(self, hparams: Any) -> Iterator[dict]:
        del hparams
        return itertools.repeat(self.all, self.steps)


def fedjax(build: Callable) -> Callable:
    """`build(module, task, losses, rates)` is an algorithm of fedjax."""

    def run(task: Any, module: Any) -> Iterator[Arrays]:
        import jax
        import jax.numpy as jnp

        def losses(x, batch, key):
            del key
            return ((batch["x"] @ x["w"].T + x["b"] - batch["y"]) ** 2).mean(1)

        sgd = module.optimizers.sgd
        rates = sgd(task.hyper["lr"]), sgd(1.0)
        algorithm, key = build(module, task, losses, rates), jax.random.PRNGKey(0)
        state = algorithm.init({k: jnp.asarray(v) for k, v in task.x0.items()})
        given = lambda i: (*task.data[i], task.steps)
        for cohort in task.cohorts:
            clients = [(str(i).encode(), Whole(*given(i)), key) for i in cohort]
            state, _ = algorithm.apply(state, clients)
            yield {k: np.asarray(v) for k, v in state.params.items()}

    return run


def averaging(module: Any, task: Any, losses: Callable, rates: tuple) -> Any:
    import jax

    mean = lambda x, batch, key: losses(x, batch, key).mean()
    return module.algorithms.fed_avg.federated_averaging(jax.grad(mean), *rates, None)


def proximal(module: Any, task: Any, losses: Callable, rates: tuple) -> Any:
    return module.algorithms.fed_prox.fed_prox(losses, *rates, None, task.hyper["mu"])


# ------------------------------------------------------------------------- decent-bench
def decent(name: str, **names: str) -> Callable:
    """An algorithm of decent-bench, whose costs are the clients' losses."""

    def run(task: Any, module: Any) -> Iterator[Arrays]:
        get = importlib.import_module
        arrays = get("decent_array.interoperability")
        arrays.set_backend("numpy")
        n, size = task.x0["w"].size, task.x0["w"].size + task.x0["b"].size
        join = lambda x: arrays.from_numpy(np.concatenate([x["w"].ravel(), x["b"]]))

        def split(row: Any) -> Arrays:
            row = np.array(arrays.to_numpy(row))
            return {"w": row[:n].reshape(task.x0["w"].shape), "b": row[n:]}

        Zero: Any = get("decent_bench.costs").ZeroCost

        class Loss(Zero):
            number = 0

            def gradient(self, x: Any, **more: Any) -> Any:
                return join(task.grad(self.number, split(x)))

        clients = []
        for i in range(len(task.sizes)):
            loss = Loss((size,))
            loss.number = i
            clients.append(get("decent_bench.agents").Agent(loss))
        network = get("decent_bench.networks").FedNetwork(clients)
        cohort = lambda active, iteration: [clients[i] for i in task.cohorts[iteration]]
        given = {k: task.hyper[v] for k, v in {"step_size": "lr", **names}.items()}
        algorithm = getattr(module, name)(
            num_local_steps=task.steps,
            x0=join(task.x0),
            selection_scheme=types.SimpleNamespace(select=cohort),
            **given,
        )
        algorithm.initialize(network)
        for number in range(len(task.cohorts)):
            algorithm.step(network, number)
            yield split(network.server().x)

    return run


# ------------------------------------------------------------------------- the packages
RATES = {"lr": "server_lr", "beta1": "b1", "beta2": "b2", "tau": "tau"}
SERVER = {"server_step_size": "server_lr", "beta_1": "b1", "epsilon": "tau"}
ZERO = "v begins at 0, `_fed_opt.py:104`"


def fluke_adaptive(mode: str, **names: str) -> Entry:
    return Entry(
        f"FedOpt, mode={mode}",
        f"fed{mode}",
        fluke("fedopt", "Client", "FedOptServer", names, mode=mode),
        FIND.format("fluke_fedopt.md", "`fedopt.py:51, 61, 66`, `server.py:380`"),
    )


def fluke_scaffold(**more: Any) -> Callable:
    names = ("scaffold", "SCAFFOLDClient", "SCAFFOLDServer")
    return fluke(*names, weighted=False, **more)


PACKAGES = (
    package(
        "fluke-fl",
        "fluke",
        "0.8.1",
        Entry(
            "FedAvg, weighted=True",
            "fedavg",
            fluke("fedavg", "Client", "Server", weighted=True),
        ),
        Entry(
            "FedProx, weighted=False",
            "fedprox",
            fluke("fedprox", "FedProxClient", "Server", {"mu": "mu"}, weighted=False),
        ),
        Entry(
            "SCAFFOLD, weighted=False",
            "scaffold",
            fluke_scaffold(names={"global_step": "server_lr"}),
            FIND.format("fluke_scaffold.md", "`scaffold.py:164`"),
        ),
        Entry(
            "SCAFFOLD, weighted=False, global_step=1",
            "scaffold",
            fluke_scaffold(global_step=1.0),
            "the server's rate is 1 here",
        ),
        fluke_adaptive("adam", **RATES),
        fluke_adaptive("yogi", **RATES),
        fluke_adaptive("adagrad", lr="server_lr", beta1="b1", tau="tau"),
    ),
    package(
        "fedlab",
        "fedlab.contrib.algorithm",
        "1.3.0",
        Entry(
            "FedAvgServerHandler",
            "fedavg",
            fedlab("fedavg", "FedAvgServerHandler", "FedAvgSerialClientTrainer"),
            FIND.format("fedlab_fedavg.md", "`basic_server.py:86-88`"),
        ),
        Entry(
            "FedProxServerHandler",
            "fedprox",
            fedlab(
                "fedprox",
                "FedProxServerHandler",
                "FedProxSerialClientTrainer",
                {"mu": "mu"},
            ),
        ),
        Entry(
            "ScaffoldServerHandler",
            "scaffold",
            fedlab(
                "scaffold",
                "ScaffoldServerHandler",
                "ScaffoldSerialClientTrainer",
                lr="server_lr",
            ),
        ),
    ),
    package(
        "fedjax",
        "fedjax",
        "0.0.17",
        Entry("fed_avg", "fedavg", fedjax(averaging)),
        Entry("fed_prox", "fedprox", fedjax(proximal)),
    ),
    package(
        "decent-bench",
        "decent_bench.algorithms.federated",
        "0.3.0",
        Entry(
            "FedAvg",
            "fedavg",
            decent("FedAvg"),
            "documented: uniform weights, `_fed_avg.py:35`",
        ),
        Entry("FedProx", "fedprox", decent("FedProx", penalty="mu")),
        Entry("Scaffold", "scaffold", decent("Scaffold", server_step_size="server_lr")),
        Entry("FedAdam", "fedadam", decent("FedAdam", beta_2="b2", **SERVER), ZERO),
        Entry("FedYogi", "fedyogi", decent("FedYogi", beta_2="b2", **SERVER), ZERO),
        Entry("FedAdagrad", "fedadagrad", decent("FedAdagrad", **SERVER), ZERO),
    ),
)

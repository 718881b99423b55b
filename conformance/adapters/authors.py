"""Code of authors that is not a package: repositories below the folder CLONES.

A repository `owner/name` is in the folder of this name. Nothing of it is copied here:
functions and classes are taken from its files by name, and run as they stand there.
"""

import ast
import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

from conformance.adapters.entry import Arrays, Entry, package
from conformance.adapters.methods import examples, layer, values
from conformance.adapters.rules import MATRIX, float32, torch_optimizer, usual


def pieces(file: Path, names: tuple[str, ...], scope: dict, old=(), new=()) -> dict:
    """Functions and classes of a script, without the rest of it.

    Constants that the script has in its text are replaced by settings.
    """
    text = file.read_text()
    for before, after in zip(old, new, strict=True):
        text = text.replace(before, after)
    nodes = {
        node.name: node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
    }
    body: list[ast.stmt] = [nodes[name] for name in names]
    exec(compile(ast.Module(body, type_ignores=[]), str(file), "exec"), scope)
    return scope


def rule(file: str, *names: str, given: Callable, **more: Any) -> Callable:
    """The last of these names is an optimizer of PyTorch."""

    def build(folder, params, h):
        import torch

        scope = {"torch": torch, "math": math, "Optional": Optional, "Tuple": tuple}
        scope |= {"Optimizer": torch.optim.Optimizer, "ParamsT": Any}
        scope |= {"DTensor": type(None)}  # there is one process
        made = pieces(folder / file, names, scope)[names[-1]]
        return made(**given(params, h), **more)

    return torch_optimizer(build)


def liu(method: str) -> Callable:
    """Methods of Liu et al. 2025: `update_FedMuon`, or `update_Local_Muon`.

    Their decay of 0.01 and momentum of 0.98 are replaced by the settings.
    """
    constants = "weight_decay=0.01", "momentum=0.98"

    def run(task: Any, module: Path) -> Iterator[Arrays]:
        import torch

        h, K = task.hyper, task.steps
        muon = types.ModuleType("muon")  # which the script imports
        text = (module / "muon.py").read_text()
        text = text.replace("momentum=0.95", f"momentum={h['momentum']}")
        text = text.replace('group.get("momentum", 0.95)', str(h["momentum"]))
        exec(compile(text, "muon.py", "exec"), vars(muon))
        sys.modules["muon"] = muon
        share = len(task.cohorts[0]) / len(task.sizes)
        more = {"alpha": 1.0, "gamma": h.get("align", 0.0), "K": K, "lora": 0}
        args = types.SimpleNamespace(freeze=1, lg=1.0, **more)
        scope = {"torch": torch, "device": "cpu", "lr": h["lr"], "args": args}
        scope |= {"selection": share, "print": lambda *said: None}
        names = f"update_{method}", "apply_weights_FedLADA", "apply_weights_avg"
        settings = f"weight_decay={h['decay']}", f"momentum={h['momentum']}"
        file = module / "main_FedMuon.py"
        pieces(file, names, scope, constants, settings)
        worker = types.SimpleNamespace(model=layer(task.x0), R=0)
        worker.criterion = torch.nn.MSELoss()
        worker.get_param_name = lambda p: next(
            n for n, q in worker.model.named_parameters() if q is p
        )

        def choose(i: int) -> None:
            worker.data_iterator = [examples(task, i)] * K

        worker.data_id_loader = choose
        server: Any = layer(task.x0)
        delta: dict = {}
        m: dict = {}
        x = server.state_dict()
        for cohort in task.cohorts:
            x = {k: v.clone() for k, v in x.items()}
            update = lambda i, *more, x=x: scope[names[0]](worker, x, 1, i, *more)
            with float32():
                if method == "FedMuon":
                    ends = [update(i, delta, m, h["lr"], 0) for i in cohort]
                    x, delta, m = scope[names[1]](len(task.sizes), ends, server, delta)
                else:
                    ends = [update(i, h["lr"]) for i in cohort]
                    x = scope[names[2]](len(task.sizes), ends, server)
            yield values(server)

    return run


PACKAGES = (
    package(
        "KellerJordan/Muon",
        "",
        "857d1ad",
        Entry(
            "SingleDeviceMuon",
            f"{MATRIX} muon_kernel",
            rule(
                "muon.py",
                "zeropower_via_newtonschulz5",
                "muon_update",
                "SingleDeviceMuon",
                given=lambda p, h: {"params": p, **usual(h)},
            ),
            "the scale is of the kernel before it is flattened, `muon.py:40`",
        ),
    ),
    package(
        "MoonshotAI/Moonlight",
        "",
        "c2ad5b2",
        Entry(
            "Muon",
            MATRIX,
            rule(
                "examples/toy_train.py",
                "zeropower_via_newtonschulz5",
                "Muon",
                given=lambda p, h: {"muon_params": p, **usual(h, weight_decay="wd")},
            ),
            "documented: the scale of their paper",
        ),
    ),
    package(
        "microsoft/dion",
        "",
        "0a059a4",
        Entry(
            "muon_reference.Muon",
            MATRIX,
            rule(
                "dion/muon_reference.py",
                "zeropower_via_newtonschulz5",
                "Muon",
                given=lambda p, h: {"params": p, **usual(h, momentum="mu")},
            ),
            "`adjust_lr` is an option, and `spectral_norm` by default",
        ),
    ),
    package(
        "junkangLiu0/FedMuon",
        "",
        "f3972e2",
        Entry("update_FedMuon", "fedmuon_align", liu("FedMuon")),
        Entry("update_Local_Muon", "local_muon", liu("Local_Muon")),
    ),
)

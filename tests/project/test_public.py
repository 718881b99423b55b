"""What `fm` offers is annotated, documented and runs as its docstrings show."""

import doctest
import inspect
import re
import subprocess
import sys
from typing import Any

import docstring_parser
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon.algorithms.registry import Source, base_of
from fedjax_muon.cli.call import texts_of
from tests.support.packages import needs

TABLES = (fm.algorithms.ALL, fm.minimax.ALL, fm.decentralized.ALL)
TABLES += (fm.decentralized.PRIVATE_METHODS,)
ROWS = [method for table in TABLES for method in table.values()]
METHODS = [method.function for method in ROWS]
NAMED = {name: getattr(fm, name) for name in fm.__all__}
# functions of one name are one function: a registry's is that of `fm`
FUNCTIONS: dict[str, Any] = {f.__name__: f for f in METHODS} | {
    name: value for name, value in NAMED.items() if inspect.isfunction(value)
}
CLASSES = {name: value for name, value in NAMED.items() if inspect.isclass(value)}
# parts of the library that export names of their own
NAMES = ("privacy", "compression", "decentralized", "runs", "deploy")
NAMES += ("aggregators", "attacks")
PARTS = {name: getattr(fm, name) for name in NAMES} | {"summary": fm.runs.summary}
EXPORTED = [(part, n) for part, module in PARTS.items() for n in module.__all__]
EXPORTED = [(part, name) for part, name in EXPORTED if name not in NAMED]
EMPTY = inspect.Parameter.empty
AUTHORS = "Checked against the authors' code"
CHECKED = {  # how docstrings say what a row says
    Source.TEXT: "Checked against the paper's text",
    Source.AUTHORS: AUTHORS,
    Source.DEPARTS: f"{AUTHORS}, from which it departs",
    Source.INDEPENDENT: "Checked against independent code",
    Source.UNVERIFIED: "Not verified",
    Source.OURS: "Defined here",
}


def words(text: str) -> list[str]:
    """The words of a name or a description, without articles."""
    return [w for w in re.findall(r"\w+", text.lower()) if w not in ("a", "an", "the")]


def problems(function) -> list[str]:
    """What is missing or wrong in the signature and the docstring of a function."""
    signature = inspect.signature(function)
    kinds = {name: p.annotation for name, p in signature.parameters.items()}
    kinds["the returned value"] = signature.return_annotation
    found = [f"{name} is not annotated" for name in kinds if kinds[name] is EMPTY]
    text = docstring_parser.parse(
        inspect.getdoc(function) or "", docstring_parser.DocstringStyle.GOOGLE
    )
    if not text.short_description:
        found.append("no summary")
    described = [p.arg_name.lstrip("*") for p in text.params]
    if described != [name for name in signature.parameters if name in described]:
        found.append(f"Args has {described}, of {list(signature.parameters)}")
    for p in text.params:
        if words(p.description or "") in ([], words(p.arg_name.replace("_", " "))):
            found.append(f"{p.arg_name} is described by its name")
        elif not re.match(r"[A-Z`\d]|[b-z]\b", p.description or ""):
            found.append(f"the description of {p.arg_name} has no capital letter")
    return found


def undocumented(name: str, value: Any) -> list[str]:
    """What is missing or wrong in what is said of a function or a class."""
    if inspect.isfunction(value):
        return problems(value)
    if not inspect.isclass(value):
        return []
    own = inspect.getdoc(value) or ""
    # what a NamedTuple or a dataclass is given where there is none
    return [] if own and not own.startswith(f"{name}(") else ["no docstring"]


def test_all_that_is_public_is_annotated_and_documented():
    public = [*(FUNCTIONS | CLASSES).items()]
    public += [(name, getattr(PARTS[part], name)) for part, name in EXPORTED]
    found = [(name, undocumented(name, value)) for name, value in public]
    assert [one for one in found if one[1]] == []


def untaught(method) -> list[str]:
    """What the docstring of a method lacks of what a reader needs."""
    text = inspect.getdoc(method.function) or ""
    described = texts_of(method.function)
    parameters = inspect.signature(method.function).parameters
    found = [f"no {name} in Args" for name in parameters if name not in described]
    source = " ".join(text.partition("\n\nSource: ")[2].partition("\n\n")[0].split())
    parts = [CHECKED[method.source], *re.findall(r"arXiv:[\d.]+\d", method.paper)]
    parts += [] if "none" in method.paper else [method.paper.split(",")[0]]
    found += [f"no {part!r} in Source" for part in parts if part not in source]
    # by one rule: a row checked against the authors' code says if runs are others
    if method.source.name == "AUTHORS" and re.search("depart", text):
        found.append("departs, and its row does not say so")
    preset = base_of(method.function)
    headings = [] if preset else ["\n\nExample:\n", "\n\nSee also: "]
    return found + [f"no {each.strip()}" for each in headings if each not in text]


def test_the_docstrings_of_methods_teach():
    """Updates stand in them as indented lines, those of presets in their bases'."""
    assert {m.name: untaught(m) for m in ROWS if untaught(m)} == {}
    update = re.compile(r"\n\n    .*(<-|->|=)")
    own = [m for m in ROWS if not base_of(m.function)]
    shown = {m.name for m in own if update.search(inspect.getdoc(m.function) or "")}
    assert {m.name for m in own} - shown == set()


def test_a_registry_has_the_functions_that_are_public():
    for function in METHODS:
        assert NAMED.get(function.__name__, function) is function
    assert fm.algorithms.ALL.keys() <= set(fm.__all__)
    rows = fm.decentralized.ALL | fm.decentralized.PRIVATE_METHODS
    assert rows.keys() <= set(fm.decentralized.__all__)


@pytest.mark.parametrize("module", [fm, fm.minimax, fm.decentralized])
def test_methods_have_their_names_on_the_command_line_in_python_too(module):
    methods = module.algorithms.ALL if module is fm else module.ALL
    for name, method in methods.items():
        assert getattr(module, name) is method.function
        assert name in dir(module)
    for name, method in fm.decentralized.PRIVATE_METHODS.items():
        assert getattr(fm.decentralized, name) is method.function
    assert not {"jax", "Any", "annotations", "optax"} & set(dir(module))


@pytest.fixture(scope="module")
def prepared() -> dict[str, Any]:
    """The names that examples may use besides those of `fm`."""
    digits = fm.data.load("digits")
    clients = fm.partition.iid(digits.y_train, 4, key=jax.random.key(0))
    model = fm.models.MLP(10, (4,))
    task = fm.tasks.classification(model, digits.x_train.shape[1:])
    sizes = {"cohort": 4, "local_steps": 1, "batch_size": 8}
    simulation = fm.federate(fm.fedavg(lr=0.1), task, digits, clients, **sizes)
    state, _ = simulation.train_round(simulation.init(jax.random.key(0)))
    sizes |= {"num_clients": 4, "max_client_size": 512, "classes": 10}
    shared = fm.deploy.federation(fm.fedavg(lr=0.1), task, **sizes)
    own = [(digits.x_train[part], digits.y_train[part]) for part in clients]
    nodes = {i: fm.deploy.Node(shared, i, *pair) for i, pair in enumerate(own)}
    asked: dict[int, bytes] = {}
    keep = lambda requests, deadline: asked.update(requests) or ()
    fm.deploy.serve(shared, keep, jax.random.key(0), rounds=1)
    of_client_2 = {"images": own[2][0], "labels": own[2][1], "request": asked[2]}
    in_process = {"digits": digits, "clients": clients, "task": task, "state": state}
    in_process["simulation"] = simulation
    in_process["problem"] = fm.problems.classification(clients=4)
    return {"shared": shared, "nodes": nodes} | of_client_2 | in_process


def failures(value: Any, names: dict[str, Any], prepared: dict[str, Any]) -> str:
    """What goes wrong where the examples of a docstring run, with some more names."""
    modules = {"fm": fm, "jax": jax, "jnp": jnp, "np": np, "optax": optax}
    state = jax.tree.map(lambda x: x.copy(), prepared["state"])  # `run` donates it
    known = NAMED | modules | prepared | {"state": state} | names
    text = inspect.getdoc(value) or ""
    example = doctest.DocTestParser().get_doctest(text, known, "", None, None)
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    return "".join(report)


def faults(chosen, prepared: dict[str, Any]) -> dict[str, str]:
    """What goes wrong in the examples of `fm` or of its parts, by their names."""
    found = {}
    for part, name in chosen:
        module = PARTS.get(part)
        names = {n: getattr(module, n) for n in module.__all__} if module else {}
        value = names[name] if module else OF_FM[name]
        if said := failures(value, names | {name: value}, prepared):
            found[f"{part} {name}"] = said
    return found


# whose examples compile much, or need a package of the extra dev
LONG = {
    *(
        ("", name)
        for name in ("tune", "run_cells", "train", "compare", "sweep", "simulate")
    ),
    *(("privacy", name) for name in ("buffered_toeplitz", "best_banded", "banded")),
    *(("deploy", name) for name in ("in_process", "serve")),
}
OF_FM = FUNCTIONS | CLASSES
EXAMPLES = [*(("", name) for name in OF_FM), *EXPORTED]


def test_all_names_of_fm_have_an_example():
    """Rows of the registry that are presets of another function have that one's."""
    without = {
        name
        for name, value in OF_FM.items()
        if ">>> " not in (inspect.getdoc(value) or "")
    }
    assert {name for name in without if not base_of(OF_FM[name])} == set()


def test_examples_run(prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    assert not LONG - set(EXAMPLES)
    assert faults([one for one in EXAMPLES if one not in LONG], prepared) == {}


@pytest.mark.slow
def test_long_examples_run(prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert faults(LONG, prepared) == {}


USER = """
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import fedjax_muon as fm


def sign_of_average(decay: float = 0.9) -> optax.GradientTransformation:
    def init(params: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, params)

    def update(grads: Any, average: Any, params: Any = None) -> tuple[Any, Any]:
        average = optax.tree.update_moment(grads, average, decay, order=1)
        return jax.tree.map(jnp.sign, average), average

    return optax.GradientTransformation(init, update)


class State(NamedTuple):
    params: Any
    opt: optax.OptState


@fm.recorded
def mine(
    lr: fm.Hyper = 0.1, *, server_lr: fm.Hyper = 1.0,
    rule: optax.GradientTransformation = optax.identity(),
) -> fm.Algorithm:
    server_rule = optax.trace(0.9)

    def init(params: Any) -> State:
        return State(params, server_rule.init(params))

    def client(
        objective: fm.Objective, shared: fm.ParamsMessage, kept: Any, batches: Any,
        round: fm.Round,
    ) -> tuple[fm.ParamsMessage, Any]:
        def step(now: Any, batch: fm.Batch, key: jax.Array) -> tuple[Any, Any]:
            x, opt = now
            g = objective.grad(x, batch, key)
            return fm.move(objective, x, fm.value_at(lr, round), rule, opt, g), ()

        now = shared.params, rule.init(shared.params)
        (x, _), _ = fm.local_steps(step, now, batches, round)
        change = fm.tree.add(shared.params, fm.tree.scale(-1.0, x))
        return fm.ParamsMessage(change), kept

    def server(state: State, mean: fm.ParamsMessage, round: fm.Round) -> State:
        rate = fm.value_at(server_lr, round)
        x, opt = fm.descend(state.params, rate, server_rule, state.opt, mean.params)
        return State(x, opt)

    main = fm.Exchange(fm.broadcast_params, client, server)
    return fm.Algorithm(init, fm.no_client_state, (main,))


digits = fm.data.load("digits")
parts = fm.partition.dirichlet(digits.y_train, 4, alpha=0.5, key=jax.random.key(0))
task: fm.Task = fm.tasks.classification(fm.models.MLP(10), digits.x_train.shape[1:])

algorithm = fm.compress(
    mine(lr=0.01, rule=sign_of_average()), fm.top_k(0.1), feedback=1.0
)
simulation: fm.Simulation = fm.federate(
    algorithm, task, digits, parts, cohort=2, local_steps=5, batch_size=32
)
state = simulation.init(jax.random.key(1))
state, metrics = simulation.train_round(state)
state, history = fm.run(simulation, state, rounds=10)
accuracy: float = history[-1]["test_accuracy"]

schedule = optax.exponential_decay(0.1, 100, 0.5)
scheduled: fm.Algorithm = fm.fedmuon(lr=schedule)
cells = [fm.Cell({"lr": lr}, jax.random.key(0), parts) for lr in (0.01, 0.1)]
for group in fm.run_cells(simulation, cells, rounds=10):
    losses = [outcome.rows[-1]["train_loss"] for outcome in group]

weights = fm.topology.metropolis(fm.topology.ring(4))
agents = fm.decentralize(
    fm.decentralized.dsgd(lr=0.1), task, digits, parts, weights=weights, batch_size=32
)
final, rows = fm.run(agents, agents.init(jax.random.key(2)), rounds=10)
"""


WRONG = """
import fedjax_muon as fm

fm.fedavg(lr="high")
fm.fedavg(rate=0.1)
fm.fedavgs(lr=0.1)
algorithm: int = fm.compress(fm.fedavg(), fm.top_k(0.1))
"""


@pytest.mark.slow
def test_a_users_script_passes_strict_mypy(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(WRONG)
    needs("mypy")
    config = tmp_path / "mypy.ini"
    # of the two scripts alone: what they import is followed, but not reported
    config.write_text("[mypy]\nstrict = true\nfollow_imports = silent\n")
    words = [sys.executable, "-m", "mypy", "user.py", "wrong.py"]
    words += ["--config-file", config, "--ignore-missing-imports"]
    words += ["--cache-dir", "/dev/null"]  # writing it would take half of the time
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    found = re.findall(r"^(\S+?):(\d+): error", run.stdout, re.MULTILINE)
    assert found == [("wrong.py", str(line)) for line in (4, 5, 6, 7)], run.stdout
    assert "in 1 file (checked 2 source files)" in run.stdout


@pytest.mark.slow
def test_type_checkers_know_every_method(tmp_path):
    needs("mypy")
    names = [f"fm.{name}" for name in fm.algorithms.ALL]
    names += [f"fm.minimax.{name}" for name in fm.minimax.ALL]
    private = fm.decentralized.PRIVATE_METHODS
    names += [f"fm.decentralized.{name}" for name in (*fm.decentralized.ALL, *private)]
    assert len(names) == len(ROWS) == 101
    path, wrong = (
        tmp_path / "uses.py",
        ["fm.no", "fm.minimax.no", "fm.decentralized.no"],
    )
    shown = [f"reveal_type({name})" for name in names]
    path.write_text("\n".join(["import fedjax_muon as fm", *shown, *wrong, ""]))
    checked = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(path)]
    said = subprocess.run(checked, capture_output=True, text=True, check=False).stdout
    assert re.findall(r'no attribute "(\w+)"', said) == ["no"] * 3
    types = re.findall(r'type is "def \(lr: .*fallback=\S*\.(\w+)\]"', said)
    assert len(types) == len(names), said
    assert {*types} == {"Algorithm", "Gossip", "PrivateAgents"}

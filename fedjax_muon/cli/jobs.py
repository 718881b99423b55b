"""What a command is about: methods, a problem, and the arguments of what trains them.

    COMMAND METHODS... [--option value]

An option is an argument of a function that the command names: of the command, of
`federate` or `decentralize`, of the guarantee, the problem, the wrappers or the
methods, and of any function that a value names, such as `--model mlp --hidden 32`. One
that several of them have belongs to the first of these, but one that a method has too
is refused until it is clear. NAME:key=value gives it to one.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from fedjax_muon.algorithms import minimax
from fedjax_muon.cli import launch as launching, names
from fedjax_muon.cli.errors import show_line
from fedjax_muon.cli.names import METHODS, Call, Grid, called, made, near, value_of
from fedjax_muon.core import Algorithm, check_count
from fedjax_muon.core.recipe import hyper_parameters
from fedjax_muon.core.schedules import cosine_decay
from fedjax_muon.decentralized import ALL as OF_AGENTS, PRIVATE_METHODS
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.private_methods import ExamplePrivacy
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.problems import Problem
from fedjax_muon.runs.simulate import Method
from fedjax_muon.simulation.federated import federate

# methods of agents that minimize; the others are for the AUC
MINIMIZING = (
    *("dsgd", "dsgd_muon", "gradient_tracking", "gradient_tracking_muon", "demuon"),
    *("suda", "suda_muon", "suda_muon_extra", "suda_muon_gt"),
)
# options of agents, unless others are given
OF_AUC_AGENTS = {
    "problem": "auc",
    "clients": "5",
    "positives": "none",
    "model": "mlp:hidden=()",
    "rounds": "200",
    "evaluate_every": "20",
}
OF_MINIMIZING_AGENTS = {
    "problem": "classification",
    "clients": "8",
    "divide": "iid",
    "rounds": "200",
    "evaluate_every": "20",
}
# arguments that no option gives, since the command has them from elsewhere
OF_COMMAND = {
    *("method", "methods", "problem", "progress", "how", "grid", "grids", "check"),
    *("begun", "devices"),
}
OF_ENGINE = {
    *("algorithm", "task", "dataset", "parts", "test_parts", "weights", "privacy"),
    "devices",
}
OF_PYTHON = {  # arguments of promises
    *("cohort", "rounds", "noise_multiplier", "prologue_noise_multiplier"),
    *("max_cohort", "noise_scale", "max_batch", "strategy"),
}
# what options of promises may be, which take less than in Python, or several values
OF_PROMISE = {"epsilon": tuple[float, ...], "clip_norm": float}


class Words:
    """The words of a command: those that come first, and options by name."""

    def __init__(self, words: Sequence[str]):
        at = next((i for i, w in enumerate(words) if w.startswith("-")), len(words))
        self.first, rest = [*words[:at]], [*words[at:]]
        self.options: dict[str, str] = {}
        self.wrappers: list[str] = []
        self.twice: dict[str, str] = {}  # options whose last value is taken
        while rest:
            word, equals, text = rest.pop(0).partition("=")
            if not word.startswith("--"):
                raise ValueError(
                    f"unexpected argument {word!r}; methods come before options, and "
                    "several values of an option are separated by commas"
                )
            name = word[2:].replace("-", "_")
            if not equals:
                alone = not rest or rest[0].startswith("--")
                text = "" if alone else rest.pop(0)
                if alone and name.startswith("no_"):
                    name, text = name[3:], "false"
            if name == "with":
                self.wrappers.append(text)
                continue
            if self.options.get(name, text) != text:
                self.twice[name] = text
            self.options[name] = text

    def texts(self) -> list[str]:
        """The same words, with every value in the word of its option."""
        options = [f"{dashed(name)}={text}" for name, text in self.options.items()]
        return [*self.first, *options, *(f"--with={text}" for text in self.wrappers)]

    def usually(self, options: Mapping[str, str]) -> None:
        """Sets options that are not given."""
        self.options = {**options, **self.options}


def dashed(name: str) -> str:
    """The option of an argument."""
    return "--" + name.replace("_", "-")


class Section(NamedTuple):
    """A function whose arguments are options."""

    title: str
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]


class Taken:
    """The options of a command, of which functions take those that are theirs."""

    def __init__(self, words: Words, rivals: Mapping[str, str] | None = None):
        self.options, self.sections = dict(words.options), list[Section]()
        self.rivals = rivals or {}  # methods, by the options that they have too

    def _pop(self, name: str, owner: str, *, named: bool) -> str:
        """Takes an option for its owner, which an option may name."""
        if rival := self.rivals.get(name):
            advice = f", or {owner}:{name}=VALUE where you name {owner}" * named
            raise ValueError(
                f"{dashed(name)} is an option of {owner} and of {rival}; write "
                f"{rival}:{name}=VALUE for the method's, with {dashed(name)} for the "
                f"other{advice}"
            )
        return self.options.pop(name)

    def take(
        self,
        title: str,
        function: Callable[..., Any],
        hidden: Collection[str] = (),
        kinds: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """The values of the options that are arguments of a function.

        Args:
          hidden: Arguments that are no options.
          kinds: What some arguments may be, instead of their annotations.
        """
        signature = inspect.signature(function).parameters
        known = {name: p for name, p in signature.items() if name not in hidden}
        for name in known.keys() & kinds.keys():
            known[name] = known[name].replace(annotation=kinds[name])
        self.sections.append(Section(title, function, known))
        values = {}
        for name, parameter in known.items():
            if name in self.options:
                text = self._pop(name, function.__name__, named=title == "Problem")
                values[name] = value_of(name, text, parameter, dashed(name))
        for value in values.values():
            self.fill(value)
        return values

    def fill(self, value: Any) -> None:
        """Gives a function that a value names the options that it has."""
        if not isinstance(value, Call):
            return
        for each in value.keywords.values():
            self.fill(each)
        known = {k: p for k, p in value.parameters.items() if k not in value.keywords}
        self.sections.append(Section(f"{value.name}", value.function, known))
        for name in known.keys() & self.options.keys():
            text = self._pop(name, value.name, named=True)
            value.keywords[name] = value_of(name, text, known[name], dashed(name))
            self.fill(value.keywords[name])

    def check(self) -> None:
        """Raises `ValueError` if an option is left."""
        known = [dashed(name) for each in self.sections for name in each.parameters]
        for name in self.options:
            advice = _owners(name) or near(dashed(name), known)
            raise ValueError(f"unknown option {dashed(name)}; {advice}--help shows all")


def _owners(name: str) -> str:
    """Advice about an option of the functions that another option may name."""
    for option in ("cohort", "model", "plan", "divide"):
        owners = [
            function
            for function, each in names.TABLES[option].items()
            if name in inspect.signature(each).parameters
        ]
        if owners:
            return f"it is one of {dashed(option)} {' or '.join(owners)}; "
    return ""


# ------------------------------------------------------ options that only commands have
def launch(
    *,
    devices: int = 1,
    distributed: bool = False,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> int:
    """Joins other processes, and returns the number of devices of each.

    Args:
      devices: Number of devices per host that share a cohort. On a CPU, at most its
        number of cores.
      distributed: Join the other processes started by SLURM, Open MPI, Kubernetes or
        Cloud TPU. All must see the directory.
      coordinator: HOST:PORT of process 0, if you started the processes yourself.
      num_processes: Number of processes, with --coordinator.
      process_id: Number of this process, from 0, with --coordinator.
    """
    how = launching.Launch(distributed, coordinator, num_processes, process_id)
    check_count("devices", devices)
    launching.begin(how, devices)
    return devices


def training(*, tune: bool = False, compile_for: str | None = None) -> None:
    """How a run is executed.

    Args:
      tune: Time all plans first and use the fastest. Always on for accelerators, unless
        you name a plan.
      compile_for: Compile one round for a TPU topology, such as v5e:4x4, and print its
        memory instead of training. No TPU is needed.
    """


def comparing(*, quick: bool = False) -> None:
    """How learning rates are chosen.

    Args:
      quick: Use the rates tuned for the default data and model, whatever the data and
        model.
    """


def sweeping(*, grid: Literal["paper"] | None = None) -> None:
    """Where values of hyperparameters come from.

    Args:
      grid: Each method's published grid (paper). Options with several values, such as
        --lr 0.01,0.03,0.1, replace its values.
    """


# ------------------------------------------------------------------------------- jobs
class Job:
    """What a command is about, before anything is loaded or compiled."""

    def __init__(
        self,
        words: Words,
        command: Callable[..., Any],
        extra: Callable[..., Any],
        methods: Sequence[str] = (),
    ):
        """
        Args:
          command: Function of `experiments` that the command calls.
          extra: Function of the options that only the command has.
          methods: Names of the methods if the words have none.
        """
        # before anything is computed, since a CPU is divided into devices then
        self.devices = launch(**Taken(words).take("Devices", launch))
        first = _all(words) if words.first == ["all"] else words.first or [*methods]
        self.calls = [called("method", text, "method") for text in first]
        # by the number of the method: values to try
        self.grids = {str(i): _grid_of(call) for i, call in enumerate(self.calls)}
        kinds = {call.name: _made(call) for call in self.calls}
        given = {*words.options}
        for name, text in words.twice.items():
            show_line(f"warning: {dashed(name)} is given twice; {text} is taken")
        words.usually(_usual(self.calls, words.options.get("problem")))
        self.compares = extra is comparing
        own = {  # options of methods that have no value of their own for them
            name: call.name
            for call, grid in zip(self.calls, self.grids.values(), strict=True)
            for name in (call.parameters.keys() & given) - {*call.keywords, *grid}
        }
        self.taken = taken = Taken(words, own)
        self.given = taken.take("Command", command, OF_COMMAND)
        self.rounds: int = self.given.get("rounds", 100)
        taken.take("Devices", launch)
        self.extra = taken.take("Execution", extra)
        text = taken.options.pop("problem", "")
        self.problem_call = called("problem", text, "problem")
        chosen = given | self.problem_call.keywords.keys()
        self.has_usual_data = not chosen & {"dataset", "model"}
        self._take_rounds(kinds)
        known = self.problem_call.keywords
        for name in known.keys() & given - {
            x for c in self.calls for x in c.parameters
        }:
            raise ValueError(f"{dashed(name)} is given twice; give it once")
        known |= taken.take("Problem", self.problem_call.function, known.keys())
        for name in taken.options.keys() - given:  # usual ones, which it does not have
            del taken.options[name]
        self._check_server(next(iter(kinds)))
        self.wrappers = [called("with", text, "wrapper") for text in words.wrappers]
        for wrapper in self.wrappers:
            taken.fill(wrapper)
        self._take_hyper()

    def _take_rounds(self, kinds: Mapping[str, Method]) -> None:
        """Takes the options of `federate` or `decentralize`, and of the guarantee.

        Args:
          kinds: The methods by name, to see what they are.
        """
        served = {isinstance(each, Algorithm): name for name, each in kinds.items()}
        if len(served) > 1:
            raise ValueError(
                f"{served[True]} has a server and {served[False]} has none; compare "
                "them separately"
            )
        self.federated = True in served
        engine = federate if self.federated else decentralize
        self.how = self.taken.take("Rounds", engine, OF_ENGINE)
        public = [name for name, each in kinds.items() if isinstance(each, Gossip)]
        if public and "epsilon" in self.taken.options:
            raise ValueError(
                f"{public[0]} has no private version; leave out --epsilon, or choose "
                f"one of {', '.join(PRIVATE_METHODS)}"
            )
        self.promise: dict[str, Any] = {}
        if len(public) < len(kinds):
            promise = ClientPrivacy if self.federated else ExamplePrivacy
            self.promise = self.taken.take("Privacy", promise, OF_PYTHON, OF_PROMISE)

    def _check_server(self, name: str) -> None:
        """Raises `ValueError` for options of methods with or without a server."""
        served, alone = (
            inspect.signature(engine).parameters.keys() - OF_ENGINE
            for engine in (federate, decentralize)
        )
        if self.federated:
            lacks = {*alone, "graph"} - served
            what, has = "is for agents without a server", "has one"
        else:
            lacks = {*served, "client_tests"} - alone
            what, has = "needs a server", "has none"
        for option in self.problem_call.keywords | self.taken.options:
            if option in lacks:
                raise ValueError(
                    f"{dashed(option)} {what}, and {name} {has}; leave it out"
                )

    def _take_hyper(self) -> None:
        """Gives every method the options that it has; several values are a grid."""
        options, used, own = self.taken.options, set[str](), set[str]()
        self.fixed: dict[str, set[str]] = {}  # what the user says of every method
        for number, call in enumerate(self.calls):
            self.taken.sections.append(
                Section(call.name, call.function, call.parameters)
            )
            numbers = hyper_parameters(call.function)
            grid = self.grids[str(number)]
            for name in call.parameters.keys() & options.keys():
                if name in call.keywords or name in grid:
                    own.add(name)
                    continue
                used.add(name)
                text, parameter = options[name], call.parameters[name]
                if name in numbers and "," in text:
                    grid[name] = _numbers(name, text)
                else:
                    value = value_of(name, text, parameter, dashed(name))
                    call.keywords[name] = value
            self.fixed[str(number)] = {*call.keywords, *grid}
        for name in own - used:
            raise ValueError(f"{dashed(name)} is given twice; give it once")
        for name in used:
            del options[name]
        for call in self.calls:
            for value in [*call.keywords.values()]:
                self.taken.fill(value)

    @property
    def sections(self) -> list[Section]:
        """The functions that options are arguments of, each once."""
        found = {(each.title, *each.parameters): each for each in self.taken.sections}
        return [each for each in found.values() if each.parameters]

    @property
    def modules(self) -> list[str]:
        """The modules of users' own functions, which training imports."""
        found, waiting = set[str](), [*self.calls, *self.wrappers, self.problem_call]
        waiting += [*self.how.values()]
        while waiting:
            each = waiting.pop()
            if isinstance(each, Call):
                waiting += each.keywords.values()
                found |= {each.name.partition(":")[0]} if each.own else set()
        return sorted(found)

    def problem(self) -> Problem:
        """Loads the data. Raises `ValueError` for what does not go together."""
        self.taken.check()
        self.problem_call.check()
        problem = self.problem_call.made(self.rounds)
        if not isinstance(problem, Problem):
            kind = type(problem).__name__
            raise ValueError(
                f"{self.problem_call.name} must return a Problem, got {kind}"
            )
        if problem.public_task is None and self.problem_call.name == "classification":
            for call in self.calls:
                if call.name in minimax.ALL:
                    raise ValueError(
                        f"{call.name} is a method for minimax problems; add "
                        "--problem auc"
                    )
        return problem

    def methods(self) -> dict[str, Method]:
        """The methods by the names that tables have."""
        labels = [self.label(call) for call in self.calls]
        found = {}
        for call, label in zip(self.calls, labels, strict=True):
            if labels.count(label) > 1:
                words = ", ".join(f"{k}={v}" for k, v in call.keywords.items())
                label = f"{label}, {words}" if words else label
            if label in found:
                raise ValueError(f"{call.name} is named twice; name each method once")
            found[label] = self._wrapped(_made(call, self.rounds))
        return found

    def label(self, call: Call) -> str:
        """What tables and figures call a method."""
        return METHODS[call.name].label if call.name in METHODS else call.name

    def _wrapped(self, method: Any) -> Any:
        for wrapper in self.wrappers:
            if not isinstance(method, Algorithm):
                raise ValueError(f"{wrapper.name} needs a method with a server")
            method = wrapper.made(self.rounds, method)
        return method

    def settings(self, problem: Problem) -> dict[str, Any]:
        """The arguments of `federate` or `decentralize`, with privacy if any."""
        cohort = self.how.get("cohort")
        if isinstance(cohort, Call) and "size" in cohort.parameters:
            cohort.keywords.setdefault("size", problem.sizes.get("cohort"))
        if isinstance(cohort, Call):
            cohort.check()
        how = {name: made(value, self.rounds) for name, value in self.how.items()}
        how["devices"] = launching.devices_of(self.devices)
        promise = dict(self.promise)
        epsilons = promise.pop("epsilon", ())
        if not epsilons:
            for name in self.promise:
                raise ValueError(f"{name} is an option of private runs; add --epsilon")
            for call in self.calls:
                if call.name in PRIVATE_METHODS:
                    raise ValueError(f"{call.name} is a private method; add --epsilon")
            return how
        kind: Any = ExamplePrivacy
        if self.federated:
            kind = ClientPrivacy
            size = how.pop("cohort", problem.sizes.get("cohort"))
            if not isinstance(size, int):
                raise ValueError(
                    "a private run decides how clients are sampled; give --cohort a "
                    "number"
                )
            promise["cohort"] = size
        several = [kind(epsilon=e, rounds=self.rounds, **promise) for e in epsilons]
        how["privacy"] = several[0] if len(several) == 1 else several
        return how


def _grid_of(call: Call) -> dict[str, Grid]:
    """Takes the several values of hyperparameters out of a call."""
    grid = {k: v for k, v in call.keywords.items() if isinstance(v, Grid)}
    for name in grid:
        del call.keywords[name]
    return grid


def _numbers(name: str, text: str) -> Grid:
    try:
        return Grid(map(float, text.split(",")))
    except ValueError:
        raise ValueError(f"{dashed(name)} must be numbers, got {text!r}") from None


def _made(call: Call, rounds: int = 1) -> Any:
    """The method of a call; a schedule of its rate is a function of the method."""
    rate = call.keywords.get("lr")
    if isinstance(rate, Call) and rate.function is cosine_decay:
        rate.check()
        rest = {**call.keywords, "lr": rate.keywords["lr"]}
        return rate.made(rounds, _made(call.given(rest), rounds))
    method = call.made(rounds)
    if not isinstance(method, Method):
        kind = type(method).__name__
        if kind in ("function", "partial"):
            raise ValueError(f"all arguments of {call.name} must have defaults")
        raise ValueError(
            f"{call.name} must return an Algorithm or a Gossip, got {kind}"
        )
    return method


def _all(words: Words) -> list[str]:
    """The methods of a problem, for the word `all`."""
    if words.options.get("problem") == "auc":
        return [*minimax.ALL]
    # no problem of the command has adapters
    known = names.algorithms.ALL.keys() - names.algorithms.ADAPTERS
    return [name for name in METHODS if name in known]


def _usual(calls: Sequence[Call], problem: str | None) -> dict[str, str]:
    """The options of methods that are not given: those of agents differ.

    Args:
      problem: The problem that is given, if one is.
    """
    named = {call.name for call in calls}
    if named and named <= OF_AGENTS.keys() | PRIVATE_METHODS.keys():
        usual = "classification" if named <= {*MINIMIZING} else "auc"
        of_auc = (problem or usual) == "auc"
        return OF_AUC_AGENTS if of_auc else OF_MINIMIZING_AGENTS
    is_minimax = bool(named) and named <= minimax.ALL.keys()
    return {"problem": "auc" if is_minimax else "classification"}

"""Options that the command line had once, and how they are written now."""

from collections.abc import Iterator, Mapping, Sequence

from fedjax_muon.cli import names
from fedjax_muon.cli.names import Call, Parameters
from fedjax_muon.core.recipe import hyper_parameters

# by the new spelling, in which {} is name=value
SPELLED = {
    "--problem digits:{}": "alpha clients divide model client_tests positives augment "
    "train_share graph",
    "--problem fashion_mnist:{}": "data_dir",
    "--problem FILE.csv:{}": "label owner split exclude categories missing na_values",
    "--problem text:FILE,{}": "window tokenizer test_share short",
    "--problem digits:model=mlp:{}": "hidden dtype",
    "--problem digits:model=lenet:{}": "convolution",
    "--problem digits:model=rnn:{}": "embedding layers cell",
    "--problem text:FILE,model=gpt:{}": "width depth heads",
    "--problem digits:divide=shards:{}": "shards_per_client",
    "--problem digits:divide=dirichlet:alpha=1,{}": "min_size",
    "--problem auc:divide=ratios:{}": "shares",
    "--cohort sampled:8,{}": "dropout draw",
    "--cohort sampled:{}": "size",
    "--cohort timed:8,lognormal:1.0,{}": "deadline",
    "--cohort timed:8,{}": "clock",
    "--cohort timed:8,lognormal:{}": "sigma step byte",
    "--cohort buffered:50,10,{}": "staleness damping max_staleness",
    "--cohort buffered:50,{}": "buffer",
    "--cohort buffered:10,{}": "concurrency",
    "--cohort replayed:buffered(50,10),{}": "record",
    "--privacy ClientPrivacy:{}": "epsilon delta clip_norm insecure_fixed_noise "
    "publish_training_metrics",
    "--privacy ExamplePrivacy:epsilon=8,{}": "change_clip_norm bands",
    "compress:METHOD,{}": "compressor feedback fields",
    "robust:METHOD,{}": "aggregator",
    "attack:METHOD,{}": "attack",
    "keep_own:METHOD,{}": "names",
    "ditto:METHOD,{}": "personal_lr pull",
}
ELSEWHERE = {  # options of which the name goes, too
    "dataset": "--problem {value}",
    "image_size": "--problem FOLDER/:size={listed}",
    "with": "{wrapped}",
    "quick": "--no-search",
    "tune": "fm.tune in Python, and --plan",
    "compile_for": "fm.compile_for in Python",
    "coordinator": "--distributed, with JAX_COORDINATOR_ADDRESS={value}",
    "num_processes": "--distributed, with JAX_NUM_PROCESSES={value}",
    "process_id": "--distributed, with JAX_PROCESS_ID={value}",
    "trust": "the words of the run again, with its --directory",
    "part": "one directory for each machine",
}
COMMANDS = {
    "resume": "resume is gone; the words that began a run go on with it, with the same "
    "--directory"
}
PLACES = {each: new for new, several in SPELLED.items() for each in several.split()}


def refusal(
    name: str, texts: Mapping[str, str], calls: Sequence[Call], known: Parameters
) -> str:
    """The error of an option that a command does not have: where it belongs.

    Args:
      texts: The texts of all options.
      calls: The methods that the words name.
      known: The options of the command.
    """
    option = "--" + name.replace("_", "-")
    places = [*dict.fromkeys(_places(name, texts, calls))]
    if not places:
        options = [f"--{each.replace('_', '-')}" for each in known]
        advice = f"{names.near(option, options)}--help shows all"
        return f"unknown option {option}; {advice}"
    return f"unknown option {option}; write {', or '.join(places)}"


def _places(
    name: str, texts: Mapping[str, str], calls: Sequence[Call]
) -> Iterator[str]:
    """The new spellings of an option: that of each method, and that of the rest."""
    value = texts[name] or "true"
    listed = f"[{value}]" if "," in value and value[:1] not in "([" else value
    said = f"{name}={listed}"
    if name == "lr" and not calls:
        yield f"fedmuon:{said}"
    for call in calls:
        if name not in names.parameters(call.function):
            continue
        if "," in value and name in hyper_parameters(call.function):
            yield f"--grid {name}={value}"
        else:
            yield f"{call.name}:{said}"
    method = calls[0].name if calls else "fedavg"
    if name in ELSEWHERE:
        head, colon, rest = value.partition(":")
        wrapped = f"{head}:{method}{colon and ','}{rest}"
        yield ELSEWHERE[name].format(value=value, wrapped=wrapped, listed=listed)
    if name not in PLACES:
        return
    place = PLACES[name]
    if "ClientPrivacy" in place and any(each.name in _agents() for each in calls):
        place = place.replace("ClientPrivacy", "ExamplePrivacy")
    if "--problem digits:" in place and (given := texts.get("problem", "")):
        mark = "," if ":" in given else ":"
        place = place.replace("digits:", f"{given}{mark}")
    yield place.replace("METHOD", method).format(said)


def _agents() -> set[str]:
    return {*names.GROUPS["agents"], *names.GROUPS["private_agents"]}

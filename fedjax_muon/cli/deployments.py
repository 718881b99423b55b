"""The command `fedjax-muon deploy`."""

import dataclasses
import functools
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

from fedjax_muon.data import Dataset
from fedjax_muon.deploy.tcp import TcpServer
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.reporting.comparison import score_column
from fedjax_muon.runs import deploy, deploy_nodes
from fedjax_muon.runs.build import parts_of
from fedjax_muon.runs.config import Run, label_of
from fedjax_muon.runs.directory import METRICS
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.own_code import is_own
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.runs.session import progress_bar, resumable

LOOPBACK = ("127.0.0.1", 0)
LOCAL_PATIENCE = 3.0  # nobody starts a process of this machine again


def command(args: Any) -> None:
    """`fedjax-muon deploy`."""
    with refusing():
        given = [name for name in ("local", "serve", "join") if getattr(args, name)]
        if len(given) != 1:
            raise ValueError(
                "deploy needs one of --local N, --serve HOST:PORT and --join HOST:PORT,"
                f" got {' and '.join(given) or 'none'}"
            )
    {"local": _local, "serve": _serve, "join": _join}[given[0]](args)


def _own(args: Any) -> dict[str, str]:
    """The options with code of the user's own, which nodes import only if they have
    the same ones."""
    found = {"--algorithm": args.algorithm, "--model": args.config.model}
    return {option: name for option, name in found.items() if is_own(name)}


def _run_of(args: Any, num_clients: int) -> Run:
    size = min(args.config.cohort_size, num_clients)
    config = args.config
    config = dataclasses.replace(config, num_clients=num_clients, cohort_size=size)
    return Run(args.algorithm, dataclasses.asdict(args.hyper), args.seed, config)


def _local(args: Any) -> None:
    with refusing():
        run = _run_of(args, args.local)
        deploy.check(run)
        dataset = dataset_of(run.config)
        parts = parts_of(run.config, dataset, run.seed)
        facts = deploy.facts_of(dataset, max(map(len, parts)))
        deploy.federation_of(run, facts)
        run_dir = deploy.begin(args.output, run, facts)
        places = deploy_nodes.save_examples(run_dir, dataset, parts)
        token = deploy_nodes.new_token()
        server = TcpServer(
            LOOPBACK,
            args.local,
            token=token,
            greeting=deploy.greeting_of(run, facts),
            patience=min(args.patience, LOCAL_PATIENCE),
        )
    own = [word for pair in _own(args).items() for word in pair]
    nodes = deploy_nodes.processes(places, server.address, token, own)
    with nodes as running, server:  # the server closes first, which ends the nodes
        with refusing():
            deploy_nodes.wait_for_all(running, places, server)
        _train(args, run, facts, dataset, run_dir, server)


def _serve(args: Any) -> None:
    with refusing():
        run = _run_of(args, args.config.num_clients)
        deploy.check(run)
        address = deploy_nodes.address_of(args.serve)
        token = deploy_nodes.token_of(args.token_file)
        files = args.certificate, args.private_key, args.authority
        tls = deploy_nodes.server_tls(*files)
        dataset = dataset_of(run.config)
        facts = deploy.facts_of(dataset, args.largest_client)
        deploy.federation_of(run, facts)
        run_dir = deploy.begin(args.output, run, facts)
        server = TcpServer(
            address,
            run.config.num_clients,
            token=token,
            greeting=deploy.greeting_of(run, facts),
            tls=tls,
            patience=args.patience,
        )
    host, port = server.address
    print(f"waiting for {run.config.num_clients} nodes on {host}:{port}")
    with server:
        server.wait(run.config.num_clients)
        _train(args, run, facts, dataset, run_dir, server)


def _train(
    args: Any,
    run: Run,
    facts: deploy.Facts,
    dataset: Dataset,
    run_dir: Path,
    server: TcpServer,
) -> None:
    console = Console()
    again = f"the same command with --output {shlex.quote(str(run_dir))}"
    with resumable(run_dir, again) as stop, progress_bar(console) as bar, refusing():
        task = bar.add_task(label_of(run.algorithm), total=run.config.rounds)
        deploy.train(
            run,
            facts,
            dataset,
            server.send,
            run_dir,
            deadline=args.deadline,
            tick=functools.partial(bar.advance, task),
            stop=stop,
        )
    for reason in server.refused:
        console.print(f"refused: {reason}", style="red")
    if (run_dir / deploy.MISSING).exists():
        console.print(f"not all nodes answered: {run_dir / deploy.MISSING}")
    columns = metrics_csv.read(run_dir / METRICS)
    console.print(
        f"test {run.config.score} {columns[score_column(columns)][-1]:.4f} after "
        f"{columns['round'][-1]} rounds; "
        f"metrics in {run_dir}"
    )


def _join(args: Any) -> None:
    with refusing():
        if args.data is None or args.client is None:
            raise ValueError("--join needs the node's --data and its --client")
        if not args.data.is_file():
            raise ValueError(f"there are no examples in {args.data}")
        address = deploy_nodes.address_of(args.join)
        token = deploy_nodes.token_of(args.token_file)
        files = args.certificate, args.private_key, args.authority
        answered = deploy_nodes.run_node(
            address,
            args.client,
            args.data,
            args.states,
            token=token,
            tls=deploy_nodes.node_tls(*files),
            patience=args.patience,
            own=[*_own(args).values()],
        )
    print(f"client {args.client} answered {answered} requests")

"""A ledger of the total privacy cost of all runs on one dataset.

    ledger = Ledger("a9a.ledger.json", fingerprint(dataset))
    entry = Entry.now("runs/1/seed0", "DP-SGDA, epsilon 1, seed 0", cost_of(spec))
    epsilon = ledger.charge([entry], delta=1e-5, budget=8.0)

Every run has its own guarantee, but an adversary sees the results of all of them. A
`Cost` is what accounting needs to know about a run; `composed_epsilon` combines those
of several. The noise of all runs must be fixed before the first of them starts: a run
whose noise depends on the results of another is not covered.

A run is charged before it starts, and only once, however often it is resumed. The
ledger is a JSON file; it is locked while it is replaced as a whole.
"""

import collections
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import filelock
import numpy as np

from fedjax_muon import files
from fedjax_muon.core import check_count, check_range
from fedjax_muon.data import Dataset
from fedjax_muon.privacy.accounting import (
    ADD_OR_REMOVE,
    REPLACE_ONE,
    Adjacency,
    Pld,
    Turns,
    check_delta,
    composed_delta,
    gaussian_epsilon,
    interval_of,
    joint_multiplier,
    library,
    steps_event,
    turns_of,
)
from fedjax_muon.privacy.guarantees import (
    CLIENT,
    PrivacySpec,
    checked_accountant,
    step_multipliers,
    transcript_multiplier,
    without_guarantee,
)
from fedjax_muon.privacy.sampling import Poisson

ADJACENCIES = {known.relation: known for known in (ADD_OR_REMOVE, REPLACE_ONE)}


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run costs: one Gaussian mechanism, or steps on Poisson samples.

    A noise multiplier is the standard deviation of the noise divided by the L2
    sensitivity to one added or removed record, whatever the adjacency.
    """

    multiplier: float  # of the whole transcript; with `sampling`, of a step
    unit: str  # what is protected, in words
    adjacency: str  # ADD_OR_REMOVE_ONE or REPLACE_ONE
    delta: float
    sampling: Poisson | None = None  # None: one Gaussian mechanism, not amplified
    steps: int = 1  # of `sampling`, step 0 included
    first_multiplier: float | None = None  # of step 0; `multiplier` by default

    def __post_init__(self) -> None:
        for name in ("unit", "adjacency"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a string, got {getattr(self, name)!r}")
        if self.adjacency not in ADJACENCIES:
            raise ValueError(
                f"adjacency must be one of {', '.join(ADJACENCIES)}, got "
                f"{self.adjacency!r}"
            )
        check_delta(self.delta)
        check_range("multiplier", self.multiplier, schedules=False)
        if self.first_multiplier is not None:
            check_range("first_multiplier", self.first_multiplier, schedules=False)
        check_count("steps", self.steps)
        if self.sampling is not None:
            Pld().check(self.sampling, ADJACENCIES[self.adjacency])
        elif self.steps != 1 or self.first_multiplier is not None:
            raise ValueError(
                "one Gaussian mechanism has no steps, got steps "
                f"{self.steps} and first_multiplier {self.first_multiplier}"
            )

    @property
    def silent(self) -> bool:
        """Whether something was released without noise."""
        return self.multiplier == 0 or self.first_multiplier == 0

    def to_record(self) -> dict[str, Any]:
        """Returns the fields by name, as JSON can hold them."""
        plain = lambda v: v.item() if hasattr(v, "item") else v  # a number of NumPy's
        fields = {name: plain(v) for name, v in vars(self).items()}
        if self.sampling is not None:
            sampling = vars(self.sampling).items()
            fields["sampling"] = {name: plain(v) for name, v in sampling}
        return fields

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Cost":
        """Reads what `to_record` returned."""
        fields = dict(record)
        if fields.get("sampling") is not None:
            fields["sampling"] = Poisson(**fields["sampling"])
        return cls(**fields)


def cost_of(spec: PrivacySpec) -> Cost:
    """Returns what a run costs, from the multipliers that `report` computes with."""
    checked_accountant(spec)
    silent = any(r.noise.smallest == 0 for r in spec.releases.values())
    reasons = without_guarantee(spec.releases)
    if reasons and not silent:
        raise ValueError(f"a run without a guarantee has no cost: {reasons[0]}")
    relation = spec.adjacency.relation
    if ADJACENCIES.get(relation) != spec.adjacency:
        raise ValueError(
            f"composition covers ADD_OR_REMOVE and REPLACE_ONE, got {spec.adjacency}"
        )
    if silent:
        return Cost(0.0, spec.unit, relation, spec.delta)
    if not isinstance(spec.sampling, Poisson):
        whole = transcript_multiplier(spec)
        return Cost(whole, spec.unit, relation, spec.delta)
    first, later = step_multipliers(spec)
    run = (spec.sampling, spec.steps, None if first == later else first)
    return Cost(later, spec.unit, relation, spec.delta, *run)


def composed_epsilon(costs: Iterable[Cost], delta: float) -> float:
    """Computes the epsilon of several runs together.

    Gaussian mechanisms alone are composed exactly. As soon as one run has Poisson
    samples, all privacy loss distributions are composed numerically, rounded up as in
    `Pld`. Conditions of single runs, such as their adversary, hold for their part.
    """
    check_delta(delta)
    costs = tuple(dataclasses.replace(cost, delta=delta) for cost in costs)
    if not costs:
        return 0.0
    if any(cost.silent for cost in costs):
        return math.inf
    adjacency, gaussian = _common_adjacency(costs), joint_gaussian(costs)
    if gaussian is not None and all(cost.sampling is None for cost in costs):
        return gaussian_epsilon(gaussian / adjacency.factor, delta)
    return _pld_epsilon(tuple(sorted(costs, key=repr)), delta)


def joint_gaussian(costs: Iterable[Cost]) -> float | None:
    """The joint multiplier of those runs that are Gaussian mechanisms, if any."""
    multipliers = sorted(cost.multiplier for cost in costs if cost.sampling is None)
    if len(multipliers) > 1:
        return joint_multiplier(*multipliers)
    return multipliers[0] if multipliers else None  # without rounding


def _common_adjacency(costs: Iterable[Cost]) -> Adjacency:
    units = sorted({cost.unit for cost in costs})
    if len(units) > 1:
        raise ValueError(
            "only runs that protect the same unit compose, got "
            f"{' and '.join(map(repr, units))}: keep a ledger for each"
        )
    relations = sorted({cost.adjacency for cost in costs})
    if len(relations) > 1:
        raise ValueError(
            "only runs with the same adjacency compose, got "
            f"{' and '.join(relations)}: keep a ledger for each"
        )
    return ADJACENCIES[relations[0]]


@np.errstate(over="ignore")  # as in `accounting`
@functools.lru_cache(maxsize=256)  # takes seconds
def _pld_epsilon(costs: tuple[Cost, ...], delta: float) -> float:
    accountant = pld_accountant(costs, Pld().interval)
    return float(accountant.get_epsilon(composed_delta(delta, _turns(costs))))


def _turns(costs: Sequence[Cost]) -> list[Turns]:
    adjacency, gaussian = _common_adjacency(costs), joint_gaussian(costs)
    turns = [
        each
        for cost in costs
        if cost.sampling is not None
        for each in turns_of(
            cost.sampling,
            cost.multiplier,
            cost.steps,
            adjacency,
            cost.first_multiplier,
        )
    ]
    if gaussian is not None:
        turns.append(Turns(1.0, adjacency.factor / gaussian, 1, False))
    return turns


def pld_accountant(costs: Sequence[Cost], interval: float) -> Any:
    """Composes the privacy loss distributions of runs; for `interval`, see `Pld`."""
    accounting = library()
    relations, adjacency = accounting.NeighboringRelation, _common_adjacency(costs)
    gaussian = joint_gaussian(costs)
    counts = collections.Counter(cost for cost in costs if cost.sampling is not None)
    # `ADD_OR_REMOVE` zeroes a record out, which is REPLACE_SPECIAL in the library.
    # Truncated batches need it; for other events it is the same as ADD_OR_REMOVE_ONE.
    # Under REPLACE_ONE the library doubles the sensitivity by itself.
    replaced = adjacency == REPLACE_ONE
    accountant = accounting.pld.PLDAccountant(
        relations.REPLACE_ONE if replaced else relations.REPLACE_SPECIAL,
        interval_of(interval, _turns(costs)),
    )
    if gaussian is not None:
        accountant.compose(accounting.GaussianDpEvent(gaussian))
    # in a fixed order, for the same rounding in every process
    for cost, count in sorted(counts.items(), key=repr):
        event = steps_event(
            accounting,
            cast(Poisson, cost.sampling),
            cost.multiplier,
            cost.steps,
            cost.first_multiplier,
        )
        accountant.compose(accounting.SelfComposedDpEvent(event, count))
    return accountant


FORMAT = "fedjax_muon privacy ledger"
VERSION = 3  # of the format; 1 had no rounds of runs, 2 did not say who the clients are
AGAIN = "start again in another directory, which the ledger charges again"
UNKNOWN = "unknown, of "  # clients of a run that version 1 or 2 has charged
PATIENCE = 600  # seconds to wait for another process; an accountant takes a few


@dataclasses.dataclass(frozen=True)
class Entry:
    """One run in a ledger."""

    run: str  # identifies the run, in this ledger
    label: str  # what ran, in words
    cost: Cost
    time: str  # when it was charged, in UTC, ISO 8601
    void: str = ""  # why the run has no guarantee, if it has none
    round: int = -1  # the last one whose state may have been released; -1: none
    # digest of which client has which examples, of a run that protects clients
    clients: str = ""

    def __post_init__(self) -> None:
        for name in ("run", "label", "time", "void", "clients"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a string, got {getattr(self, name)!r}")
        if type(self.round) is not int:
            raise TypeError(f"round must be an integer, got {self.round!r}")
        if (self.cost.unit == CLIENT) != bool(self.clients):
            raise ValueError(
                "clients must be a digest of which client has which examples for a "
                f"run that protects clients, and empty for others, got {self.clients!r}"
            )

    @classmethod
    def now(
        cls, run: str, label: str, cost: Cost, void: str = "", clients: str = ""
    ) -> "Entry":
        """Makes an entry with the present time."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(run, label, cost, now, void, clients=clients)


def fingerprint(dataset: Dataset) -> str:
    """Identifies the training examples of a dataset.

    The same examples in another order, number or scale count as another dataset.

    Returns:
      SHA-256 of the shapes, types and bytes of `x_train` and `y_train`, in hexadecimal.
    """
    digest = hashlib.sha256()
    for name in ("x_train", "y_train"):
        array = np.ascontiguousarray(getattr(dataset, name))
        if array.dtype.hasobject:
            raise TypeError(f"{name} must be an array of numbers, got {array.dtype}")
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        digest.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


class Ledger:
    """A file that records what private runs on one dataset have cost.

    Several processes may charge at the same time. Only its owner can read the file,
    which is made when something is first charged.
    """

    def __init__(self, path: str | os.PathLike[str], data: str | None = None):
        """Opens a ledger.

        Args:
          data: The `fingerprint` of the dataset, which is needed to charge something.
        """
        # a link would be replaced by a file, and its target locked by another name
        self.path = Path(path).expanduser().resolve()
        self.data = data

    def entries(self) -> tuple[Entry, ...]:
        """Reads what was charged, oldest first; nothing if there is no file."""
        record = self._record()
        return () if record is None else tuple(self._entries(record))

    def check(
        self, entries: Sequence[Entry], delta: float, budget: float | None = None
    ) -> float:
        """Does what `charge` does, but adds nothing."""
        return self._added(entries, delta, budget)[1]

    def charge(
        self, entries: Sequence[Entry], delta: float, budget: float | None = None
    ) -> float:
        """Adds the runs that the ledger does not have yet, all or none.

        Args:
          budget: Largest epsilon of all runs in the ledger together; by default
            unlimited. Runs that are already in the ledger are never refused.

        Returns:
          Epsilon of all runs in the ledger together, infinite if one has no guarantee,
          or if they divide the examples among clients in several ways.
        """
        with self._locked():  # which makes the folders
            new, epsilon = self._added(entries, delta, budget)
            if new:
                fields = [vars(e) | {"cost": e.cost.to_record()} for e in new]
                before = self._record() or {"data": self.data, "entries": []}
                self._write(before | {"entries": [*before["entries"], *fields]})
        return epsilon

    def round_of(self, run: str) -> int:
        """The last round of a run whose state may have been released; -1 if none."""
        return self._entry(run).round

    def reach(self, run: str, round: int) -> None:
        """Records, before a run releases the state of a round, that it does so.

        Raises:
          ValueError: If the run has released a later round already. Its state is an old
            one, and its next rounds would be released again with other noise.
        """
        self._entry(run)  # before a lock is made where there is no ledger
        with self._locked():
            entry = self._entry(run)
            if round < entry.round:
                raise ValueError(
                    f"the state is from round {round}, but {self.path} says that the "
                    f"run may have released round {entry.round}: it is an older copy; "
                    f"{AGAIN}"
                )
            if round == entry.round:
                return
            record = self._record()
            assert record is not None  # it has the run
            for fields in record["entries"]:
                if fields["run"] == run:
                    fields["round"] = round
            self._write(record)

    def _entry(self, run: str) -> Entry:
        found = [entry for entry in self.entries() if entry.run == run]
        if not found:
            raise ValueError(f"{self.path} has no run {run!r}; {AGAIN}")
        return found[0]

    def _added(
        self, entries: Sequence[Entry], delta: float, budget: float | None
    ) -> tuple[tuple[Entry, ...], float]:
        """The entries that the ledger lacks, and the epsilon that includes them."""
        if budget is not None:
            check_range("epsilon", budget, open_low=True, schedules=False)
        charged = self.entries()
        new = self._new(charged, entries)
        epsilon = _composed((*charged, *new), delta)
        if new and budget is not None and epsilon > budget:
            if math.isinf(epsilon):
                raise ValueError(
                    f"{self.path} contains, or would contain, runs without a "
                    "guarantee, or with other clients, so no budget can hold; leave "
                    "out the budget, or use another ledger"
                )
            raise ValueError(
                f"the privacy budget of {self.path} would be exceeded: {len(charged)} "
                f"runs have spent epsilon {_composed(charged, delta):.4g}; with "
                f"{len(new)} more, it would be {epsilon:.4g}, but only {budget:g} is "
                f"allowed, at delta {delta:g}; run fewer, or with smaller epsilons"
            )
        return new, epsilon

    def _new(
        self, charged: Sequence[Entry], entries: Sequence[Entry]
    ) -> tuple[Entry, ...]:
        """The entries that the ledger lacks, without repetitions."""
        known = {entry.run: entry for entry in charged}
        new: dict[str, Entry] = {}
        for entry in entries:
            other = known.get(entry.run) or new.get(entry.run)
            if other is None:
                new[entry.run] = entry
            elif (other.cost, other.void) != (entry.cost, entry.void):
                raise ValueError(
                    f"{self.path} has the run {entry.run!r} with another cost, "
                    f"{other.cost} instead of {entry.cost}; give this run another name"
                )
            elif other.clients not in (entry.clients, UNKNOWN + entry.run):
                raise ValueError(
                    f"{self.path} has the run {entry.run!r} with other clients; "
                    "give this run another name"
                )
        return tuple(new.values())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = filelock.FileLock(f"{self.path}.lock", timeout=PATIENCE, mode=0o600)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise ValueError(
                f"another process has kept {self.path} locked for {PATIENCE} seconds; "
                "wait until it ends"
            ) from error
        try:
            yield
        finally:
            lock.release()  # the file stays: others may wait for it

    def _record(self) -> dict[str, Any] | None:
        """The content of the file; None if there is none."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            record = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self._damaged("it is not JSON") from error
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(
                f"{self.path} is not a privacy ledger; choose another path for it"
            )
        if record.get("version") not in range(1, VERSION + 1):
            raise ValueError(
                f"{self.path} has version {record.get('version')!r} of the ledger's "
                f"format, but this fedjax_muon reads versions up to {VERSION}; update "
                "fedjax_muon"
            )
        if record.get("sha256") != _digest(record):
            raise self._damaged("its content does not match its SHA-256")
        if self.data not in (None, record["data"]):
            raise ValueError(
                f"{self.path} is the ledger of another dataset, with the fingerprint "
                f"{record['data'][:12]}..., not {self.data[:12]}...; keep one for each"
            )
        for fields in record["entries"] if record["version"] < 3 else ():
            if fields["cost"]["unit"] == CLIENT:
                fields["clients"] = UNKNOWN + fields["run"]
        return record

    def _entries(self, record: Mapping[str, Any]) -> Iterator[Entry]:
        for fields in record["entries"]:
            try:
                cost = Cost.from_record(fields["cost"])
                yield Entry(**(fields | {"cost": cost}))
            except (TypeError, ValueError, KeyError) as error:
                raise self._damaged(f"an entry is unknown: {error}") from error

    def _damaged(self, reason: str) -> ValueError:
        return ValueError(
            f"{self.path} is damaged, {reason}; restore it from a backup: it alone "
            "says what was spent"
        )

    def _write(self, record: Mapping[str, Any]) -> None:
        record = {**record, "format": FORMAT, "version": VERSION}
        record["sha256"] = _digest(record)
        text = json.dumps(record, indent=1) + "\n"
        files.write(self.path, text, mode=0o600)


def divisions_of(entries: Iterable[Entry]) -> list[list[Entry]]:
    """The entries of the same clients together; of examples, all of them."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.clients, []).append(entry)
    return list(found.values())


def _composed(entries: Sequence[Entry], delta: float) -> float:
    costs = [entry.cost for entry in entries]
    if any(entry.void for entry in entries):
        return math.inf
    if len(divisions_of(entries)) > 1 and _common_adjacency(costs):
        return math.inf  # a client of one is part of several of another
    return composed_epsilon(costs, delta)


def _digest(record: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in record.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

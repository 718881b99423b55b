"""Trackers: what they are told while a run trains, and what happens if they fail."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedjax_muon.core.reading import reason

Record = Mapping[str, Any]  # metrics by name, and the round
Status = Literal["finished", "interrupted", "failed"]


class Tracker(NamedTuple):
    """Writes the records of a run somewhere, by three functions.

    A run that is resumed starts its trackers again, and gives them the records of all
    rounds so far before new ones. So `on_record` may get a round that is in the log
    already; the log has every round once nevertheless.
    """

    name: str  # for warnings
    on_start: Callable[[Mapping[str, Any]], None]  # (configuration of the run)
    on_record: Callable[[Record], None]  # (metrics by name, and the round)
    on_end: Callable[[Status], None]


@contextlib.contextmanager
def follow(
    trackers: Sequence[Tracker], config: Mapping[str, Any]
) -> Iterator[Callable[[Record], None]]:
    """Starts trackers, and ends them with the status that the block ends in.

    Yields a function that gives a record to all trackers. One that raises an error gets
    no further records, and a warning says so. The values of `config` may be nested.
    """
    working = list(trackers)

    def each(call: Callable[[Tracker], None]) -> None:
        for tracker in list(working):
            try:
                call(tracker)
            except Exception as error:  # trackers name no common type
                working.remove(tracker)
                warnings.warn(
                    f"{tracker.name} failed and gets no further records of this run "
                    f"({reason(error)}); training continues",
                    stacklevel=2,
                )

    def end(status: Status) -> None:
        each(lambda tracker: tracker.on_end(status))

    each(lambda tracker: tracker.on_start(dict(config)))
    try:
        yield lambda record: each(lambda tracker: tracker.on_record(dict(record)))
    except (KeyboardInterrupt, GeneratorExit):
        end("interrupted")
        raise
    except BaseException:
        end("failed")
        raise
    end("finished")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Joins the names of nested values by dots, after a prefix."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        nested = isinstance(value, Mapping)
        values |= flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return values


def metrics_of(record: Record) -> dict[str, float]:
    """The numbers of a record that are finite, without its round."""
    return {
        name: value
        for name, value in record.items()
        if name != "round" and isinstance(value, int | float) and math.isfinite(value)
    }

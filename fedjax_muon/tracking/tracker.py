"""Trackers: what they are told while a run trains, and what happens if they fail."""

import contextlib
import importlib
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

    A tracker that raises an error gets no further records, and a warning says so.

    Args:
      trackers: Trackers of one run.
      config: Configuration of the run: values by name, which may be nested.

    Yields:
      A function that gives a record to all trackers.
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


def imported(package: str) -> Any:
    """Imports the package of a tracker, when it is first used.

    Returns:
      The module.
    """
    return importlib.import_module(package)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Joins the names of nested values by dots.

    Args:
      config: Values by name, some of which are mappings.
      prefix: What all names begin with.

    Returns:
      Values by name, none of which is a mapping.
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def metrics_of(record: Record) -> dict[str, float]:
    """The numbers of a record that are finite, without its round.

    Args:
      record: Values by name.

    Returns:
      Numbers by name.
    """
    return {
        name: value
        for name, value in record.items()
        if name != "round" and isinstance(value, int | float) and math.isfinite(value)
    }

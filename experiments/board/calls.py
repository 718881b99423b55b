"""The best row of a track as a call to copy."""

from collections.abc import Mapping
from typing import Any

from experiments.board.rows import ROWS
from experiments.board.standings import Standing

SCHEDULE = "optax.cosine_decay_schedule({}, {})"
# what a row has beside the method, and what is around the call, by the track
BESIDE: Mapping[str, str] = {
    "private": ", with `clip_norm={clip_norm}` in `fm.privacy.ClientPrivacy`",
    "stragglers": ", with `cohort=fm.buffered(20, 5, clock)`",
}
AROUND: Mapping[str, str] = {
    "attackers": """\
fm.robust(
    fm.{},
    fm.aggregators.chain(
        fm.aggregators.nearest_neighbor_mixing(0.2), fm.aggregators.median()
    ),
)""",
    "ring": "fm.decentralized.{}",
}


def call(track: str, each: Standing) -> str:
    """The method of a row, whose rate falls to 0 over the row's rounds."""
    row, given = ROWS[each.row], _options(each)
    given.pop("clip_norm", None)
    rate = row.typed.get("lr", "lr")
    given[rate] = SCHEDULE.format(given[rate], each.planned)
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    other = {} if row.option is None else {row.option: 1.0}
    name = _name(row.method(lr=1.0, **other))
    return AROUND.get(track, "fm.{}").format(f"{name}({words})")


def lines(track: str, each: Standing) -> list[str]:
    """The call in Markdown, and what else the row has."""
    beside = BESIDE.get(track, "").format(**_options(each))
    about = f"{each.label} over {each.planned} rounds{beside}:"
    return [about, "", "```python", call(track, each), "```"]


def _options(each: Standing) -> dict[str, str]:
    return dict(word.split("=") for word in each.options.split(", "))


def _name(algorithm: Any) -> str:
    """The function that made it, inside of wrappers."""
    inner = algorithm.recipe.arguments.get("algorithm")
    return algorithm.recipe.function.__name__ if inner is None else _name(inner)

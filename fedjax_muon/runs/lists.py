"""Options of several values, apart by commas or spaces, and of names."""

import difflib
from collections.abc import Sequence
from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec


def _listed(kind: type, metavar: str, *, least: int = 0):
    def read(words: Sequence[str]) -> tuple:
        values = tuple(kind(v) for word in words for v in word.split(",") if v)
        if len(values) < least:
            raise ValueError("it needs a value")
        return values

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda values: list(map(str, values)),
    )


Names = Annotated[tuple[str, ...], _listed(str, "NAME,...")]
Seeds = Annotated[tuple[int, ...], _listed(int, "INT,...")]
Epsilons = Annotated[tuple[float, ...], _listed(float, "NUMBER,...", least=1)]
NameOrFunction = Annotated[
    str,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME|MODULE:FUNCTION",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [value],
    ),
]


def check_name(option: str, name: str, known: Sequence[str]) -> None:
    """Raises `ValueError` if a name is not among those that are known."""
    if name in known:
        return
    near = difflib.get_close_matches(name, known, 1, 0.5)
    advice = f"did you mean {near[0]}? " if near else ""
    raise ValueError(
        f"unknown {option} {name!r}; {advice}choose one of {', '.join(known)}, or your "
        "own as MODULE:FUNCTION"
    )

"""Options of several values, apart by commas or spaces."""

from typing import Annotated

from tyro.constructors import PrimitiveConstructorSpec


def _listed(kind: type, metavar: str):
    split = lambda words: [v for word in words for v in word.split(",") if v]
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=lambda words: tuple(map(kind, split(words))),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda values: list(map(str, values)),
    )


Names = Annotated[tuple[str, ...], _listed(str, "NAME,...")]
Seeds = Annotated[tuple[int, ...], _listed(int, "INT,...")]
Numbers = Annotated[tuple[float, ...], _listed(float, "NUMBER,...")]

"""Tests write small files, which are not what was published of the sets."""

from fedjax_muon import data
from fedjax_muon.data.source import File, Source

PUBLISHED = dict(data.NAMES)  # as it is before tests change it


def with_files(source: Source, change) -> Source:
    """The source with `change(file)` in place of each of its files."""
    layouts = tuple(
        layout._replace(files=tuple(map(change, layout.files)))
        for layout in source.layouts
    )
    return source._replace(layouts=layouts)


def allow_small(monkeypatch, *names: str) -> None:
    """Lets these sets be of any size; what is not known is not checked."""
    for name in names:
        source = with_files(data.NAMES[name], lambda file: File(file.name))
        monkeypatch.setitem(data.NAMES, name, source)

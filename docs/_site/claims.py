"""The claims on the page of studies: a line each, of results/claims.md."""

import re
from itertools import groupby
from pathlib import Path

CLAIMS = Path(__file__).parents[2] / "results" / "claims.md"
PLACE = "<!-- claims -->"
MARKS = {"reproduced": "✓", "contradicted": "✗", "undecided": "?"}
LABEL = re.compile(r"\[\w+\]")
VERDICT = re.compile(r"\*\*(\w+)\*\*")


def lines() -> list[str]:
    """How many claims have which verdict, and all claims by paper."""
    text = CLAIMS.read_text("utf-8")
    table = text[text.index("## Experiments\n") : text.index("## Experiments that")]
    rows = [
        row.strip("| ").split(" | ") for row in table.splitlines() if row[:1] == "|"
    ]
    papers = groupby(rows[2:], key=lambda row: row[0])
    written = [re.search(r"^Of \d+ claims: .*", table, re.MULTILINE)[0]]
    for paper, claims in papers:
        written += ["", f"### {paper}", ""]
        for _, claim, *_, verdict, run in claims:
            named = LABEL.sub(lambda m: m[0].replace("_", " "), run)
            links = named.replace("](", "](../results/")
            mark = MARKS[VERDICT.match(verdict)[1]]
            written.append(f"- {mark} {claim[0].upper()}{claim[1:]} ({links})")
    return written


def on_page_markdown(markdown, page, config, files):
    """Puts them in their place; the links become those of the site by the next hook."""
    return markdown.replace(PLACE, "\n".join(lines()))

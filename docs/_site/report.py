"""The sample of a report, docs/assets/report.html, and plotly, which it needs.

A report has plotly in it, which is 4.8 MB. The sample is kept without it. It loads the
file that is added here, from the plotly that is installed where the site is built.

    fedjax-muon compare fedavg fedmuon --output digits
    fedjax-muon report digits --output report.html
    python docs/_site/report.py report.html      # writes docs/assets/report.html
"""

import importlib.util
import sys
from pathlib import Path

from mkdocs.structure.files import File

SAMPLE = Path(__file__).parents[1] / "assets" / "report.html"
SCRIPT = "plotly.min.js"
MISSING = 'document.write("<p>This site was built without plotly: no figure.</p>")\n'


def plotly() -> str:
    """The code of the installed plotly."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def on_files(files, config):
    """Adds plotly next to the sample."""
    code = plotly() if importlib.util.find_spec("plotly") else MISSING
    files.append(File.generated(config, f"assets/{SCRIPT}", content=code))
    return files


def main() -> None:
    """Keeps a report without plotly."""
    page = Path(sys.argv[1]).read_text("utf-8")
    before, code, after = page.partition(plotly())
    assert code, "the report is of another plotly"
    tag = before.rindex("<script")
    script = f'<script src="{SCRIPT}"></script>'
    page = before[:tag] + script + after.removeprefix("</script>")
    policy = "script-src 'unsafe-inline'"
    assert page.count(policy) == 1
    page = page.replace(policy, f"{policy} 'self'")
    SAMPLE.write_text(page.rstrip() + "\n", "utf-8")


if __name__ == "__main__":
    main()

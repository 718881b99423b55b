"""Pages of the notebooks, with the outputs that are stored in them.

The cell that installs the package, with a command of the shell, is left out.
"""

import base64
import json
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"


def outputs_of(cell: dict, stem: str) -> tuple[list[str], dict[str, bytes]]:
    """Markdown of a cell's outputs, and the images that it names, by their names."""
    parts, images = [], {}
    for number, output in enumerate(cell["outputs"]):
        data = output.get("data", {})
        text = output.get("text") or data.get("text/plain", "")
        if "image/png" in data:
            name = f"{stem}_{number}.png"
            parts.append(f"![output of the cell]({name})")
            images[name] = base64.b64decode("".join(data["image/png"]))
        else:
            parts.append(f"```text\n{''.join(text).rstrip()}\n```")
    return parts, images


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """The page of a notebook, and its images by their names."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    parts, images = [], {}
    for number, cell in enumerate(cells):
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source and "\n!pip " not in source:
            outputs, found = outputs_of(cell, f"{path.stem}_{number}")
            parts += [f"```python\n{source}\n```", *outputs]
            images |= found
    parts.append(f"[The notebook]({path.name}), with which this page was made.")
    return "\n\n".join(parts) + "\n", images


def on_files(files, config):
    """Adds the pages, their images, the notebooks themselves, and last figures."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text, images = page(path)
        uri = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, uri, content=text))
        for name, content in images.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
        for kept in (path, path.with_suffix(".png")):
            inside = f"notebooks/{kept.name}"
            files.append(File.generated(config, inside, abs_src_path=str(kept)))
    return files

"""Prints pip constraints: the lowest versions of the bounds in pyproject.toml."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
extras = project["project"]["optional-dependencies"]
for line in project["project"]["dependencies"] + extras["privacy"]:
    requirement = Requirement(line)
    (lowest,) = (s.version for s in requirement.specifier if s.operator == ">=")
    print(f"{requirement.name}=={lowest}")

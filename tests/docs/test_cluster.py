"""The study of docs/how_to/cluster.md, whose module workers import."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from swept import share_programs

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "cluster.md"


def test_the_study_shown_runs_on_two_processes(tmp_path, tmp_path_factory, monkeypatch):
    share_programs(tmp_path_factory, monkeypatch)
    page = PAGE.read_text()
    study, run = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.M)
    (tmp_path / "study.py").write_text(study)
    (tmp_path / "run.py").write_text(run)
    command = [sys.executable, "run.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = page.split("It prints the test accuracy")[1].split("```")[1]
    accuracies = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    expected = [ast.literal_eval(line) for line in shown.split("\n")[1:-1]]
    assert len(accuracies) == len(expected) == 4
    for found, printed in zip(accuracies, expected, strict=True):
        assert abs(found[0] - printed[0]) < 0.02  # other versions round otherwise

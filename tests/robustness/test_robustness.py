"""Commands that are mistyped, damaged, killed, without room; fixed seeds."""

import contextlib
import random
import signal

import pytest

from . import damage, environments, fuzz, kills, outcome

# The command prints warnings; it does not raise them.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of a few rounds."""
    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    result = outcome.run([*environments.TRAIN, "--directory", run_dir])
    assert result.status == 0, result.text
    return run_dir


def test_command_lines_end_as_promised(tmp_path):
    draw, started = random.Random(10), 0
    for number in range(3):
        place = tmp_path / str(number)
        place.mkdir()
        with contextlib.chdir(place):
            case = fuzz.try_line(fuzz.line(draw, place), place)
        assert not case.problem, (case.problem, case.words, case.result.text)
        started += case.started
    assert started


@pytest.mark.parametrize("seed", range(3))
def test_damaged_runs_are_refused_or_repaired(seed, finished, tmp_path):
    case = damage.harm_run(random.Random(seed), finished, tmp_path)
    assert not case.problem, case


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path):
    """Killed while it saves, and again while it trains."""
    whole, run_dir, said = tmp_path / "whole", tmp_path / "run", tmp_path / "phase"
    words = [*kills.TRAIN, *kills.SMALL]
    assert kills.finish(said, *words, "--directory", str(whole)) == ""
    again = [*words, "--directory", str(run_dir)]
    for phase, number in (("saving", signal.SIGKILL), ("training", signal.SIGTERM)):
        said.unlink(missing_ok=True)
        process = kills.start(said, *again)
        assert kills.hit(process, said, phase, number, 0.0)
        assert process.returncode in (-signal.SIGKILL, 130)
    assert kills.finish(said, *again) == ""
    assert kills.results(run_dir) == kills.results(whole)


def test_hostile_environments_and_full_disks(tmp_path):
    checks = environments.without(tmp_path)
    checks += environments.limited_files(tmp_path, sizes=(20,))
    assert [c for c in checks if c.problem] == []


def test_a_long_run_keeps_its_memory_and_files():
    assert environments.soak(600).problem == ""

"""Which errors are refusals, and which are faults."""

import numpy as np
import pytest

from fedjax_muon.data.dataset import Dataset, check
from fedjax_muon.runs.errors import refusing


def test_an_error_of_this_package_is_a_refusal(capsys):
    empty = np.zeros((0, 2), np.float32), np.zeros(0, int)
    with pytest.raises(SystemExit) as stop, refusing():
        check(Dataset(*empty, *empty, ("a",)))
    assert stop.value.code == 2
    assert "x_train must be non-empty" in capsys.readouterr().err


def test_an_error_of_another_package_is_a_fault():
    with pytest.raises(ValueError, match="could not be broadcast"), refusing():
        np.broadcast_to(np.zeros((2, 3)), (4, 3))


def test_an_error_of_the_file_system_is_a_refusal(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop, refusing():
        (tmp_path / "missing").read_text()
    assert stop.value.code == 2
    assert "No such file" in capsys.readouterr().err

"""`fedjax-muon data`: present and missing data sets, and how to get them."""

import re
from importlib.util import find_spec

import numpy as np
import pytest
from tiny_images import write_npz

from fedjax_muon import data
from fedjax_muon.cli import main
from fedjax_muon.data import names, prepared


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch):
    monkeypatch.delenv(names.DATA_DIR_VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "120")


def printed(capsys, *arguments):
    main(["data", *map(str, arguments)])
    return capsys.readouterr().out


def rows(text):
    """The cells of the tables, by the name in the first."""
    cells = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    rows = {name: row for name, *row in cells if len(row) == 4}
    assert rows.pop("name") == ["examples", "of", "classes", "status"]
    return rows


def test_without_a_directory_all_but_the_embedded_are_missing(capsys):
    text = printed(capsys)
    table = rows(text)
    assert set(table) == {*data.NAMES, *(f"tfds:{name}" for name in prepared.SETS)}
    for name, row in table.items():
        package = names.source_of(name).package
        state = "missing"
        if names.source_of(name).embedded:
            found = find_spec(package.replace("scikit-learn", "sklearn"))
            state = f"present: {package}" if found else f"missing: {package}"
        assert row[-1] == state
    assert table["fashion_mnist"][:3] == ["60000 + 10000", "28 x 28 x 1", "10"]
    assert "name one by --data-dir or FEDJAX_MUON_DATA" in text
    assert "  tfds:glue/sst2: fedjax-muon prepare glue/sst2\n" in text
    for set_of_papers in ("cifar10", "cifar100", "sentiment140"):
        assert f"tfds:{set_of_papers}" in table
    assert (
        "tiny_imagenet: download http://cs231n.stanford.edu/tiny-imagenet-200" in text
    )


def test_the_list_of_a_directory(capsys, tmp_path):
    write_npz(tmp_path / "cifar10_subset.npz")
    (tmp_path / "cifar100.npz").write_bytes(b"half of it")
    for version in ("1.0.0", "2.0.0"):
        (tmp_path / "sentiment140" / version).mkdir(parents=True)
        (tmp_path / "sentiment140" / version / "dataset_info.json").write_text("{}")
    text = printed(capsys, "--list", "--data-dir", tmp_path)
    table = rows(text)
    assert table["cifar10_subset"][-1] == "present: cifar10_subset.npz"
    assert table["cifar100"][-1] == "damaged: cifar100.npz"
    assert f"  {tmp_path / 'cifar100.npz'}: expected a NumPy .npz archive" in text
    assert table["tfds:sentiment140"][-1] == "ambiguous: sentiment140"
    assert "choose one of tfds:sentiment140/1.0.0, tfds:sentiment140/2.0.0" in text
    rest = text[text.index("how to get what is missing") :]
    assert "\n  cifar10: write it with numpy.savez" in rest
    assert "or fedjax-muon prepare cifar10\n" in rest
    for name in ("cifar100", "cifar10_subset", "digits"):
        assert f"  {name}: " not in rest


def test_one_set_in_detail(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv(names.DATA_DIR_VARIABLE, str(tmp_path))
    classes = np.array([f"kind {k}" for k in range(10)])
    write_npz(tmp_path / "cifar10.npz", classes=classes)
    text = printed(capsys, "cifar10")
    assert "published: 50000 + 10000 examples to train on" in text
    assert f"cifar10.npz: found {tmp_path / 'cifar10.npz'}\n" in text
    assert "test_batch.bin: missing; as published: 30,730,000 bytes\n" in text
    assert "by fedjax-muon prepare cifar10\n" in text
    assert "status:    present\n" in text
    assert "read:      30 + 10 examples, 6 x 5 x 3 float32\n" in text
    assert f"classes:   {', '.join(classes)}\n" in text
    text = printed(capsys, "breast_cancer")
    assert "status:    comes with scikit-learn\n" in text
    assert "classes:   benign, malignant\n" in text


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["data", *map(str, arguments)])
    assert stop.value.code == 2
    return capsys.readouterr()


def test_what_cannot_be_loaded_ends_in_its_error(capsys, tmp_path):
    said = refused(capsys, "mnist", "--data-dir", tmp_path)
    assert "status:    missing\n" in said.out
    assert "MD5 6bbc9ace898e44ae57da46a324031adb\n" in said.out
    assert "fedjax-muon: error: mnist: neither" in said.err
    (tmp_path / "cifar100.npz").write_bytes(b"half of it")
    said = refused(capsys, "cifar100", "--data-dir", tmp_path)
    assert "status:    damaged\n" in said.out
    assert "cifar100.npz: expected a NumPy .npz archive" in said.err
    said = refused(capsys, "tfds:my_own", "--data-dir", tmp_path)
    assert "status:    missing\n" in said.out
    assert "published" not in said.out

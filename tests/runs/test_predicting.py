"""Models that were trained label what users give them, and from a file to the bit."""

import warnings

import flax.linen as nn
import jax
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.cli.main import main
from fedjax_muon.data import text
from fedjax_muon.runs.about import about_model
from fedjax_muon.runs.predicting import MADE, module_of
from tests.support.error_lines import one_line
from tests.support.packages import needs

needs("safetensors", "export")
RNG = np.random.default_rng(0)
N = 80
AGE, SEX = RNG.integers(30, 90, N), RNG.choice(["F", "M"], N)
ILL = np.where(AGE + 10 * (SEX == "M") > 65, "ill", "well")
MIXED = {"label": "outcome", "categories": "one_hot", "missing": "mean"}


def table(path, ages=AGE, sexes=SEX, separator=","):
    rows = zip(ages, sexes, ILL, strict=False)
    lines = [["age", "sex", "outcome"], *([*map(str, row)] for row in rows)]
    lines[5][0] = ""
    path.write_text("\n".join(separator.join(line) for line in lines))
    return path


def trained(dataset, *, model=None, method=fm.fedavg, **how):
    make = fm.problems.classification
    problem = make(dataset, clients=2, alpha=100.0, model=model)
    return fm.train(method, problem, rounds=2, progress=False, **how)


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    place = tmp_path_factory.mktemp("patients")
    path = table(place / "a.csv")
    dataset = fm.data.from_csv(path, **MIXED)
    result = trained(dataset, directory=place / "run")
    result.save(place / "m.safetensors")
    return place, dataset, result


def by_hand(params, x):
    """Probabilities of a perceptron, in float64."""
    for name in sorted(params, key="head".__eq__):
        kernel, bias = (np.asarray(params[name][k], float) for k in ("kernel", "bias"))
        x = x @ kernel + bias
        x = np.maximum(x, 0) if name != "head" else x
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_rows_of_a_table_are_labeled(patients):
    _, dataset, result = patients
    rows = {"age": [61, None], "sex": ["F", "M"]}
    found = result.predict(rows)
    # inputs by hand: age, blank, F, M, standardized as the training examples
    mean, std = dataset.standardization
    filled = dataset.columns.columns[0].mean
    x = np.array([[61, 0, 1, 0], [filled, 1, 0, 1]]) - mean
    wanted = by_hand(result.params, x / std)
    np.testing.assert_allclose(found.probabilities, wanted, rtol=1e-5)
    assert found.labels.tolist() == [found.classes[i] for i in wanted.argmax(1)]
    assert found.classes == ("ill", "well")


def test_a_file_predicts_as_the_run_to_the_bit(patients):
    place, dataset, result = patients
    model = fm.load_model(place / "m.safetensors")
    loaded = fm.load_run(place / "run")
    new = table(place / "new.csv", AGE[::-1], SEX[::-1])
    for x in (place / "a.csv", new, dataset, {"age": AGE, "sex": SEX}):
        found = [each.predict(x).probabilities for each in (result, model, loaded)]
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])
    labels = np.array(dataset.classes)[dataset.y_test]
    right = (model.predict(dataset).labels == labels).mean()
    assert right == pytest.approx(result.records[-1]["test_accuracy"])


def test_a_frame_is_a_table(patients):
    pandas = needs("pandas", "pandas")
    place, _, result = patients
    frame = pandas.read_csv(place / "a.csv")
    wanted = result.predict(place / "a.csv").probabilities
    for each in (frame, frame.convert_dtypes()):  # NaN, and pandas.NA
        np.testing.assert_array_equal(result.predict(each).probabilities, wanted)


def test_the_command_writes_a_table(patients, capsys, tmp_path):
    place, _, result = patients
    wanted = str(result.predict(place / "a.csv"))
    for run in (place / "run", place / "m.safetensors"):
        main(["predict", str(run), str(place / "a.csv")])
        assert capsys.readouterr().out == wanted + "\n"
    output = tmp_path / "p.csv"
    main(["predict", str(place / "run"), str(place / "a.csv"), "--output", str(output)])
    assert output.read_text() == wanted + "\n"
    with pytest.raises(SystemExit):  # nothing is overwritten
        main(
            [
                "predict",
                str(place / "run"),
                str(place / "a.csv"),
                "--output",
                str(output),
            ]
        )
    assert "p.csv exists already; choose another name" in capsys.readouterr().err
    assert wanted.splitlines()[0] == "example,label,ill,well"


def test_a_site_may_write_another_file(tmp_path):
    """Separators and decimal marks are those of the file that was trained on."""
    path = table(tmp_path / "a.csv", [f"{x},5" for x in AGE], separator=";")
    dataset = fm.data.from_csv(path, separator=";", decimal=",", **MIXED)
    model = trained(dataset).model
    one = model.predict(path).probabilities[0]
    other = model.predict({"age": [AGE[0] + 0.5], "sex": [SEX[0]]}).probabilities[0]
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float64", "float32", "uint8"])
def test_numbers_are_standardized_as_before(kind, tmp_path):
    x = (RNG.normal(size=(60, 3)) * 20 + 100).astype(kind)
    dataset = fm.data.from_arrays(x, ILL[:60], test=(x[:9], ILL[:9]))
    result = trained(dataset)
    path = result.save(tmp_path / "m.safetensors")
    model = fm.load_model(path)
    found = model.predict(x[:9]).probabilities
    np.testing.assert_array_equal(found, model.predict(dataset).probabilities)
    np.testing.assert_array_equal(found, result.predict(x[:9]).probabilities)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_read_and_resized(channels, tmp_path):
    image = needs("PIL.Image")
    folder = tmp_path / "all"
    for i in range(40):
        place = folder / "ab"[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = RNG.integers(0, 255, (12, 12, channels)).astype(np.uint8)
        shown = pixels if channels == 3 else pixels[..., 0]
        image.fromarray(shown).save(place / f"{i}.png")
    dataset = fm.data.from_folder(folder)
    model = trained(dataset, model=fm.problems.lenet).model
    found = model.predict(folder)
    assert len(found.labels) == 40
    assert found.examples[0] == str(folder / "a" / "0.png")
    one = model.predict(folder / "b" / "1.png").probabilities[0]
    np.testing.assert_allclose(one, found.probabilities[20], atol=1e-6)
    several = model.predict([folder / "b" / "1.png", folder / "a" / "0.png"])
    assert len(several.labels) == 2
    with one_line("expected images in", tmp_path):
        model.predict(tmp_path / "none")


def test_other_examples_are_refused(patients, tmp_path):
    _, dataset, result = patients
    with one_line("x lacks the columns sex; add them"):
        result.predict({"age": [1]})
    path = tmp_path / "b.csv"
    path.write_text("age,SEX\n1,F\n")
    with one_line("lacks the columns sex; add them", path):
        result.predict(path)
    path.write_text("age,sex\nold,F\n")
    with one_line("line 2: 'old' in column 'age' is not a number", path):
        result.predict(path)
    with one_line(r"one or more examples of shape \[4\], got \[2, 3\]"):
        result.predict(np.ones((2, 3)))
    with one_line("x must be finite numbers, or a CSV file or columns"):
        result.predict(np.array([["a"] * 4]))
    with one_line("x must be finite numbers"):
        result.predict(np.full((1, 4), np.nan))
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none.csv"):
        result.predict(tmp_path / "none.csv")
    other = dataset.standardization._replace(mean=dataset.standardization.mean + 1)
    with one_line("the dataset was normalized differently"):
        result.predict(dataset._replace(standardization=other))
    with one_line("has no tokenizer, and can't continue"):
        result.model.sample("a")
    with pytest.warns(UserWarning, match="'sex' has 'X', which no training example"):
        result.predict({"age": [1], "sex": ["X"]})


class Own(nn.Module):
    width: int = 3

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(self.width)(x)))


def test_a_module_of_ones_own_is_given_again(patients, tmp_path):
    _, dataset, _ = patients
    result = trained(dataset, model=lambda data: Own())
    path = result.save(tmp_path / "m.safetensors")
    found = fm.load_model(path, Own()).predict(dataset).probabilities
    np.testing.assert_array_equal(found, result.predict(dataset).probabilities)
    with one_line("the model Own is not one of fedjax_muon.models.* load the file in"):
        fm.load_model(path)
    with one_line("and the module is {'name': 'Own', 'width': 4}; give the one"):
        fm.load_model(path, Own(4))


@pytest.mark.parametrize("make", MADE)
def test_every_model_is_made_again_from_its_description(make):
    needing = {"vocabulary": 7, "vocabulary_size": 7, "context": 8, "width": 8}
    needing |= {"depth": 1, "heads": 2, "dtype": "bfloat16"}
    known = make.func if hasattr(make, "func") else make
    names = getattr(known, "__dataclass_fields__", None) or vars(known)
    module = make(**{k: v for k, v in needing.items() if k in names})
    made = module_of({"model": about_model(module)})
    assert made == module or about_model(made) == about_model(module)


@pytest.mark.slow
def test_agents_predict_with_their_mean(tmp_path):
    problem = fm.problems.auc(model=fm.problems.linear, clients=3)
    method = fm.decentralized.dm_hsgd
    result = fm.train(method, problem, rounds=2, progress=False)
    dataset = problem.dataset
    found = result.predict(dataset).probabilities
    params = jax.tree.map(lambda x: np.asarray(x, float).mean(0), result.params)
    wanted = by_hand(params.x.model, dataset.x_test)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    loaded = fm.load_model(result.save(tmp_path / "m.safetensors"))
    np.testing.assert_array_equal(loaded.predict(dataset).probabilities, found)


def test_personal_models_are_not_saved(patients):
    _, dataset, _ = patients
    own = fm.keep_own(fm.fedavg(lr=0.1), ("head",))
    with one_line("clients of this run keep parameters of their own"):
        trained(dataset, method=own).predict(dataset)
    compressed = fm.compress(own, fm.compression.top_k(0.5))
    with one_line("clients of this run keep parameters of their own"):
        trained(dataset, method=compressed).predict(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_texts_are_continued(tokenizer, tmp_path, capsys):
    letters = {name: 9 * f"{name} to be or not to be. " for name in ("ann", "bob")}
    small = fm.problems.text(
        letters,
        window=16,
        tokenizer=tokenizer,
        clients=2,
        model=lambda data: fm.problems.llama(data, width=16, depth=1, heads=2),
    )
    result = fm.train(
        fm.fedavg(lr=0.1), small, rounds=1, progress=False, directory=tmp_path / "run"
    )
    path = result.save(tmp_path / "m.safetensors")
    text = fm.load_model(path).sample("to be", 5, seed=3, top_k=2)
    assert text == result.model.sample("to be", 5, seed=3, top_k=2)
    assert text.startswith("to be")
    tokens = small.dataset.tokenizer
    ids = tokens.encode("to be")
    drawn = fm.models.generate(
        small.model, result.params, ids, 5, jax.random.key(3), top_k=2
    )
    assert text == tokens.decode(drawn)
    words = ["sample", str(tmp_path / "run"), "to be", "--length", "5", "--seed", "3"]
    main([*words, "--top-k", "2"])
    assert capsys.readouterr().out == text + "\n"
    assert len(tokens.encode(result.model.sample("to be"))) >= 16
    with one_line("this model continues texts and has no classes"):
        result.predict("to be")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fm.load_model(path)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_running_statistics_are_saved_if_the_server_has_them(own, tmp_path):
    class Normalized(nn.Module):
        @nn.compact
        def __call__(self, x, train=False):
            x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
            return nn.Dense(2)(nn.relu(x))

    dataset = fm.data.from_arrays(RNG.normal(size=(80, 3)), ILL)
    result = trained(dataset, model=lambda _: Normalized(), own_norms=own)
    if own:
        with one_line("clients of this run keep parameters of their own"):
            result.predict(dataset)
        return
    labels = np.array(dataset.classes)[dataset.y_test]
    right = (result.predict(dataset).labels == labels).mean()
    assert right == pytest.approx(result.records[-1]["test_accuracy"])
    loaded = fm.load_model(result.save(tmp_path / "m.safetensors"), result.module)
    found, wanted = loaded.predict(dataset), result.predict(dataset)
    np.testing.assert_array_equal(found.probabilities, wanted.probabilities)


@pytest.mark.slow
def test_texts_are_encoded_by_the_words_of_training(tmp_path):
    texts = [f"{'good' if i % 2 else 'bad'} food number {i}" for i in range(60)]
    labels = [i % 2 for i in range(60)]
    train, test = (
        text.Sentences(texts[:40], labels[:40]),
        text.Sentences(texts[40:], labels[40:]),
    )
    dataset = fm.data.check(text.tokenized(train, test, ("bad", "good")))
    small = lambda data: fm.problems.rnn(data, embedding=4, hidden=8)
    result = trained(dataset, model=small, method=fm.fedavg(lr=0.5))
    model = fm.load_model(result.save(tmp_path / "m.safetensors"))
    found = model.predict(texts[40:]).probabilities
    np.testing.assert_array_equal(found, result.predict(dataset).probabilities)
    assert model.predict(["an unknown word"]).examples == ("an unknown word",)
    with one_line("x must be finite numbers, or texts, got"):
        model.predict(np.array(["a"]))

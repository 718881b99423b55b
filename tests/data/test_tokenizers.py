"""Bytes of tokens, for every kind of tokenizer.json: all of a text, or none."""

import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.data import from_text
from fedjax_muon.data.tokenizers import from_file
from tests.support.packages import needs

library = needs("tokenizers", "dev")
decoders, models, normalizers, pre_tokenizers, processors, trainers = (
    library.decoders,
    library.models,
    library.normalizers,
    library.pre_tokenizers,
    library.processors,
    library.trainers,
)
pytestmark = pytest.mark.slow
TEXT = "to be or not to be, that is the question. ## to begin <0x41> is no byte. " * 4
WIDE = TEXT + "Été à Zürich: 日本語 — 😀 ﬁn\tof\r\n two  blanks \u2581. " * 3
PLAIN = "to be or not to be that is the question " * 4
UNKNOWN = "<unk>"
ALPHABET = pre_tokenizers.ByteLevel.alphabet()


def trained(made, trainer, **how):
    how = {"vocab_size": 330, "show_progress": False, **how}
    made.train_from_iterator([WIDE], getattr(trainers, trainer)(**how))
    return made


def byte_level(**how):
    made = library.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(**how)
    made.decoder = decoders.ByteLevel()
    return trained(made, "BpeTrainer", initial_alphabet=ALPHABET)


def with_added():
    made = byte_level(add_prefix_space=False)
    words = ["question", "日本語", library.AddedToken("Z\u01d4rich", normalized=False)]
    made.add_tokens(words)
    return made


def with_marks():
    """Ids at the start and the end of a text, and a special token that is in it."""
    made = byte_level(add_prefix_space=False)
    made.add_special_tokens(["<s>", "</s>", "question"])
    marks = [("<s>", made.token_to_id("<s>")), ("</s>", made.token_to_id("</s>"))]
    made.post_processor = processors.TemplateProcessing("<s> $A </s>", None, marks)
    return made


def split_first():
    """As of GPT-4 and Llama 3."""
    made = byte_level(add_prefix_space=False)
    split = pre_tokenizers.Split(library.Regex(r"\s+|\w+|[^\w\s]+"), "isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    return made


def cut():
    made = byte_level(add_prefix_space=False)
    made.enable_truncation(16)
    made.enable_padding(length=4096)
    made.model.dropout = 0.5
    return made


def fallback(blank=True):
    """As of Llama 2: bytes for letters without a token."""
    names = [UNKNOWN, *(f"<0x{i:02X}>" for i in range(256))]
    names += ["\u2581"] * blank + [*"abehinoqstu", "##", "#"]
    made = library.Tokenizer(
        models.BPE(
            {name: i for i, name in enumerate(names)},
            [("#", "#")],
            unk_token=UNKNOWN,
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return made


def blank_and_marks():
    made = fallback(blank=False)
    made.add_special_tokens([library.AddedToken("<s>", normalized=False)])
    return made


def unigram(**how):
    made = library.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    how = {"unk_token": UNKNOWN, "special_tokens": [UNKNOWN], **how}
    return trained(made, "UnigramTrainer", **how)


def word_level(words, pieces):
    made = library.Tokenizer(
        models.WordLevel({w: i for i, w in enumerate([UNKNOWN, *words])}, UNKNOWN)
    )
    made.pre_tokenizer = pieces
    made.decoder = decoders.Fuse()
    return made


def with_ends():
    """Words end in </w>, as in the first tokenizers of pairs."""
    made = library.Tokenizer(models.BPE(unk_token=UNKNOWN, end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.BPEDecoder("</w>")
    how = {"end_of_word_suffix": "</w>", "special_tokens": [UNKNOWN]}
    return trained(made, "BpeTrainer", **how)


def word_piece(normalizer=None):
    made = library.Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return trained(made, "WordPieceTrainer", special_tokens=[UNKNOWN])


def normalized(form):
    made = byte_level(add_prefix_space=False)
    made.normalizer = form
    return made


SPLIT = pre_tokenizers.WhitespaceSplit()
KEEP = {  # texts whose tokens have all bytes
    "bytes and pairs": (lambda: byte_level(add_prefix_space=False), WIDE),
    "with a blank in front": (lambda: byte_level(add_prefix_space=True), WIDE),
    "added words": (with_added, WIDE),
    "marks": (with_marks, WIDE.replace("question", "answer")),
    "marks in the text": (with_marks, WIDE.replace(".", "<s> question")),
    "a split first": (split_first, WIDE),
    "truncation, padding, dropout": (cut, WIDE),
    "SentencePiece with bytes": (fallback, WIDE.replace("\u2581", "")),
    "SentencePiece": (unigram, PLAIN),
    "NFC of a text in NFC": (lambda: normalized(normalizers.NFC()), WIDE),
    "words and all between": (
        lambda: word_level(["to", "be", ", "], pre_tokenizers.Split(", ", "isolated")),
        "to, be, to, be, to",
    ),
}
LOSE = {
    "no token for a blank": (lambda: fallback(blank=False), PLAIN),
    "no token for a blank, and marks": (blank_and_marks, f"{PLAIN} <s>"),
    "SentencePiece of two blanks": (fallback, WIDE),
    "SentencePiece without bytes": (unigram, PLAIN + "ж"),
    "unknown words": (lambda: word_level(["the"], pre_tokenizers.Whitespace()), PLAIN),
    "blanks": (lambda: word_level(PLAIN.split(), SPLIT), PLAIN.strip()),
    "ends of words": (with_ends, TEXT),
    "WordPiece": (word_piece, TEXT),
    "BERT": (lambda: word_piece(normalizers.BertNormalizer()), WIDE),
    "lower case": (lambda: normalized(normalizers.Lowercase()), WIDE),
    "accents": (
        lambda: normalized(
            normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
        ),
        "Été " * 9,
    ),
    "NFKC": (lambda: normalized(normalizers.NFKC()), "the ﬁne " * 9),
}


def saved(make, tmp_path):
    path = tmp_path / "tokenizer.json"
    make().save(str(path))
    return path


@pytest.mark.parametrize("kind", KEEP)
def test_tokens_have_the_bytes_of_the_text(kind, tmp_path):
    """Where a letter ends with a token, the tokens up to there have all bytes."""
    make, text = KEEP[kind]
    path = saved(make, tmp_path)
    read = from_file(path)
    made = library.Tokenizer.from_file(str(path))
    made.no_truncation()
    made.no_padding()
    ids = read.encode(text)
    found = made.encode(text, add_special_tokens=False)
    marks = [i for i in range(len(ids)) if read.nbytes[ids[i]] == 0]
    assert bool(marks) == ("<s>" in text)
    if "dropout" not in kind:
        assert ids.tolist() == found.ids
        sizes = read.nbytes[ids]
        for i in marks:  # which are in the text, and no text
            start, end = found.offsets[i]
            sizes[i] = len(text[start:end].encode())
        count = np.cumsum(sizes)
        ends = [end for _, end in found.offsets]
        starts = [start for start, _ in found.offsets[1:]] + [len(text)]
        whole = [i for i, end in enumerate(ends) if starts[i] >= end]
        assert len(whole) > 4
        for i in whole:
            size = len(text[: ends[i]].encode()) - len(text[: ends[whole[0]]].encode())
            assert count[i] - count[whole[0]] == size, found.tokens[: i + 1]
    plain = text.replace("<s>", "").replace("question", "" if marks else "question")
    assert read.nbytes[ids].sum() - len(plain.encode()) in (0, 1)
    assert read.decode(ids).removeprefix(" ") == plain.removeprefix(" ")
    data = from_text({"a": text}, tokenizer=path, window=2)
    windows = np.concatenate([data.x_train, data.x_test])
    rest = ids[1 + windows[:, 1:].size :]
    counted = read.nbytes[[*windows[:, 1:].ravel(), *rest]].sum()
    assert counted == read.nbytes[ids[1:]].sum()


@pytest.mark.parametrize("kind", LOSE)
def test_what_loses_text_is_refused_or_has_no_bytes(kind, tmp_path):
    make, text = LOSE[kind]
    path = saved(make, tmp_path)
    told = "(the tokens of tokenizer.json have|tokenizer.json loses text: '.*' becomes)"
    with pytest.raises(ValueError, match=f"a: {told}.*lossy=True") as error:
        from_text({"a": text}, tokenizer=path, window=2)
    assert "\n" not in str(error.value)
    data = from_text({"a": text}, tokenizer=from_file(path, lossy=True), window=2)
    assert not data.tokenizer.nbytes.any()
    model = fm.models.GPT(data.tokens, 2, 4, 1, 1)
    assert {*fm.tasks.language(model, data).metrics} == {"loss", "perplexity"}

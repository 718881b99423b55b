"""Token ids of RoBERTa: byte-pair encoding of UTF-8.

    encoder = roberta_encoder("roberta-base/vocab.json", "roberta-base/merges.txt")
    dataset = data.load("rte", encoder=encoder)

The tokens and their merges are those of "Language Models are Unsupervised Multitask
Learners" (Radford et al. 2019). The special tokens are those of RoBERTa
(arXiv:1907.11692): a sentence is <s> a </s>, and a pair is <s> a </s></s> b </s>.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_muon.data.text import Encoder, Text, padded
from fedjax_muon.files import check_size, reason
from fedjax_muon.versions import check_installed

URL = "https://huggingface.co/FacebookAI/roberta-base"
START, PADDING, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
MIN_LENGTH = 5  # tokens: a pair has four special tokens
BATCH_SIZE = 4096  # texts per call, since the library keeps more than the ids of each


def roberta_encoder(
    vocabulary: str | Path, merges: str | Path, length: int = 128
) -> Encoder:
    """Reads RoBERTa's encoder from its `vocab.json` and `merges.txt`.

    Texts are padded to the longest one. Texts of more than `length` tokens are cut off
    at the end, in a pair the longer sentence first; special tokens are kept. Ids are
    those of Hugging Face's tokenizer, except that "<s>" and the other special tokens
    have no special meaning within a text.

    Args:
      length: Largest number of tokens of a text, at least MIN_LENGTH.
    """
    check_installed("tokenizers", "RoBERTa's encoder")
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from tokenizers.models import BPE

    for path in map(Path, (vocabulary, merges)):
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} does not exist; download vocab.json and merges.txt of "
                f"roberta-base from {URL}"
            )
        check_size(path)
    if length < MIN_LENGTH:
        raise ValueError(f"length must be at least {MIN_LENGTH} tokens, got {length}")
    try:
        ids, pairs = BPE.read_file(str(vocabulary), str(merges))
        pieces = BPE(ids, pairs, unk_token=UNKNOWN)
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(
            f"{vocabulary} and {merges}: expected a vocabulary and the merges of its "
            f"pieces ({reason(error)}); download both again"
        ) from error
    absent = {START, PADDING, END, UNKNOWN} - ids.keys()
    if absent:
        raise ValueError(
            f"{vocabulary} has no {' and no '.join(sorted(absent))}; use RoBERTa's"
        )
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(
            f"{vocabulary}: expected the ids 0 to {len(ids) - 1}, each once, found "
            "others; download it again"
        )
    # A file that was cut off would encode the same words by other tokens.
    unmerged = ids.keys() - {first + second for first, second in pairs}
    lost = sorted(piece for piece in unmerged if len(piece) > 1 and not _is_mark(piece))
    if lost:
        raise ValueError(
            f"{merges}: expected the merges of all pieces in {vocabulary}, found none "
            f"for {len(lost)}, such as {lost[0][:40]!r}; download both again"
        )
    tokenizer = Tokenizer(pieces)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # Passed by position, since versions differ in the name of the second argument.
    marks = (END, ids[END]), (START, ids[START])
    tokenizer.post_processor = processors.RobertaProcessing(*marks)
    tokenizer.enable_truncation(length, strategy="longest_first")

    def encode(texts: Sequence[Text]) -> np.ndarray:
        rows: list[np.ndarray] = []
        for first in range(0, len(texts), BATCH_SIZE):
            batch = list(texts[first : first + BATCH_SIZE])
            encodings = tokenizer.encode_batch_fast(batch)
            rows += [np.array(one.ids, np.int32) for one in encodings]
        return padded(rows, max(map(len, rows), default=0), ids[PADDING])

    return Encoder(encode, padding=ids[PADDING], tokens=max(ids.values()) + 1)


def _is_mark(piece: str) -> bool:
    """Whether a piece is no part of words, such as "<mask>", so nothing joins it."""
    return (piece[0], piece[-1]) == ("<", ">") or piece.startswith("madeupword")

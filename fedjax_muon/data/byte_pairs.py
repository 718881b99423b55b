"""Token ids of RoBERTa: pieces of words, by byte-pair encoding of UTF-8.

    encoder = roberta_encoder("roberta-base/vocab.json", "roberta-base/merges.txt")
    dataset = data.load("rte", encoder=encoder)

The pieces and their merges are those of "Language Models are Unsupervised Multitask
Learners" (Radford et al. 2019), the marks around them RoBERTa's (arXiv:1907.11692): a
sentence is <s> a </s>, a pair <s> a </s></s> b </s>.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_muon.data.text import Encoder, Text

URL = "https://huggingface.co/FacebookAI/roberta-base"
START, PADDING, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
SHORTEST = 5  # tokens, of which a pair's marks are four
AT_ONCE = 4096  # texts: the library keeps more of each than its ids


def roberta_encoder(
    vocabulary: str | Path, merges: str | Path, length: int = 128
) -> Encoder:
    """The encoder by RoBERTa's `vocab.json` and `merges.txt`.

    Texts become as long as the longest of them is, `length` tokens at most: of one that
    is longer the end is left out, of the longer sentence of a pair first, and never a
    mark. Ids are those of Hugging Face's tokenizer, but that "<s>" and the like mean
    nothing in a text. Needs the extra `roberta`.

    Raises:
      FileNotFoundError: if a file is missing.
      ValueError: for damaged files, files that do not go together, and a length below
        SHORTEST.
    """
    # an extra, `roberta`
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from tokenizers.models import BPE

    for path in map(Path, (vocabulary, merges)):
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} does not exist; download vocab.json and merges.txt, of "
                f"roberta-base from {URL}"
            )
    if length < SHORTEST:
        raise ValueError(f"length must be at least {SHORTEST} tokens, got {length}")
    try:
        ids, pairs = BPE.read_file(str(vocabulary), str(merges))
        pieces = BPE(ids, pairs, unk_token=UNKNOWN)
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(
            f"{vocabulary} and {merges}: expected a vocabulary and the merges of its "
            f"pieces ({error}); fetch both again"
        ) from error
    absent = {START, PADDING, END, UNKNOWN} - ids.keys()
    if absent:
        raise ValueError(
            f"{vocabulary} has no {' and no '.join(sorted(absent))}; use RoBERTa's"
        )
    tokenizer = Tokenizer(pieces)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # by position: versions differ in the second one's name
    marks = (END, ids[END]), (START, ids[START])
    tokenizer.post_processor = processors.RobertaProcessing(*marks)
    tokenizer.enable_truncation(length, strategy="longest_first")

    def encode(texts: Sequence[Text]) -> np.ndarray:
        rows: list[np.ndarray] = []
        for first in range(0, len(texts), AT_ONCE):
            found = tokenizer.encode_batch_fast(list(texts[first : first + AT_ONCE]))
            rows += [np.array(one.ids, np.int32) for one in found]
        shape = len(rows), max(map(len, rows), default=0)
        padded = np.full(shape, ids[PADDING], np.int32)
        for row, own in zip(padded, rows, strict=True):
            row[: len(own)] = own
        return padded

    return Encoder(encode, padding=ids[PADDING], tokens=max(ids.values()) + 1)

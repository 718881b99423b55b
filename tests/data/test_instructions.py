"""Prompts and answers: what is read, and what is predicted."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.tasks.task import Batch
from tests.support.error_lines import one_line

LINES = [
    {"prompt": f"{i} + 1 =", "answer": f"{i + 1}", "who": "ab"[i % 2]}
    for i in range(20)
]
CHAT = [
    {"role": "system", "content": "Count."},
    {"role": "user", "content": "1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "3"},
    {"role": "assistant", "content": "4"},
]


def written(path, lines=LINES):
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return path


def read(path, lines=LINES, **how):
    return fm.data.from_jsonl(written(path, lines), **({"window": 170} | how))


def parts(row, decode=lambda ids: bytes(ids.tolist()).decode()):
    """The text of a window without its padding, and that of its answers."""
    size = np.flatnonzero(row != -1).max() + 1
    ids = np.where(row < 0, ~row, row)[:size]
    return decode(ids), decode(row[:size][row[:size] >= 0])


def test_a_line_is_a_prompt_that_is_read_and_an_answer_that_is_predicted(tmp_path):
    data = read(tmp_path / "a.jsonl")
    found = {parts(row) for row in (*data.x_train, *data.x_test)}
    wanted = {
        (
            f"<|im_start|>user\n{i} + 1 =<|im_end|>\n<|im_start|>assistant\n"
            f"{i + 1}<|im_end|>\n",
            f"{i + 1}<|im_end|>",
        )
        for i in range(20)
    }
    assert found == wanted
    assert (len(data.x_train), len(data.x_test)) == (18, 2)
    assert data.x_train.shape[1] == 171
    assert data.owners is None


def test_messages_are_a_chat_with_several_answers(tmp_path):
    data = read(tmp_path / "a.jsonl", [{"messages": CHAT}] * 20)
    text, answers = parts(data.x_train[0])
    assert answers == "2<|im_end|>4<|im_end|>"
    assert text.count("<|im_start|>") == 5
    assert text.startswith("<|im_start|>system\nCount.<|im_end|>\n<|im_start|>user\n1<")


def test_a_field_says_whose_examples_they_are(tmp_path):
    data = read(tmp_path / "a.jsonl", owner="who")
    texts = [parts(row)[1] for row in data.x_train]
    odd = [int(text.removesuffix("<|im_end|>")) % 2 for text in texts]
    np.testing.assert_array_equal(data.owners, [1 - each for each in odd])
    assert data.classes == ("a", "b")


def test_a_template_of_ones_own(tmp_path):
    def template(messages):
        return [(f"Q: {messages[0][1]} A:", False), (f" {messages[1][1]}.", True)]

    pieces = lambda messages: [
        fm.data.instructions.Piece(*p) for p in template(messages)
    ]
    data = read(tmp_path / "a.jsonl", template=pieces, tokenizer="characters")
    text, answer = parts(data.x_train[0], data.tokenizer.decode)
    assert text == f"Q: {text[3]}{text[4:].split(' A:')[0]} A:{answer}"
    assert answer.endswith(".")


class Model(nn.Module):
    """Logits that depend on the token alone."""

    @nn.compact
    def __call__(self, x):
        return nn.Embed(256, 256)(x.astype(jnp.int32))


def by_hand(table, row):
    """The mean nats of answers, in float64, and the gradient of the table."""
    ids = np.where(row < 0, ~row, row)
    total, count, g = 0.0, 0, np.zeros_like(table)
    for before, token, after in zip(ids[:-1], row[1:], ids[1:], strict=True):
        if token < 0:
            continue
        logits = table[before] - table[before].max()
        share = np.exp(logits) / np.exp(logits).sum()
        total, count = total - np.log(share[after]), count + 1
        g[before] += share
        g[before, after] -= 1
    return total / count, g / count, total


def test_the_loss_is_that_of_answers_alone(tmp_path):
    data = read(tmp_path / "a.jsonl", [*LINES, {"messages": CHAT}])
    task = fm.tasks.language(Model(), data)
    params = task.init(jax.random.key(0))
    table = np.asarray(params["Embed_0"]["embedding"], float)
    x = data.x_train[-4:]
    weight = np.float32([1, 2, 0, 1])
    each = [by_hand(table, row) for row in x]
    scores = task.evaluate(params, x, np.zeros(4, np.int32))
    np.testing.assert_allclose(scores["loss"], [a for a, _, _ in each], rtol=1e-5)
    np.testing.assert_allclose(scores["nats"], [c for _, _, c in each], rtol=1e-5)
    np.testing.assert_array_equal(scores["bytes"], (x[:, 1:] >= 0).sum(1))
    batch = Batch(jnp.asarray(x), jnp.zeros(4, jnp.int32), jnp.asarray(weight))
    g = task.grad(params, batch, jax.random.key(0))["Embed_0"]["embedding"]
    wanted = (
        sum(w * b for w, (_, b, _) in zip(weight, each, strict=True)) / weight.sum()
    )
    np.testing.assert_allclose(g, wanted, atol=1e-6)


def test_windows_without_prompts_keep_their_bits():
    texts = fm.data.from_text({"a": 99 * "to be or not "}, window=16)
    plain = fm.tasks.language(Model(), texts)
    params = plain.init(jax.random.key(0))
    signed = texts.x_train.astype(np.int32)
    zeros = np.zeros(len(signed), np.int32)
    one, other = (plain.evaluate(params, x, zeros) for x in (texts.x_train, signed))
    jax.tree.map(np.testing.assert_array_equal, one, other)


REFUSED = {
    "line 21: the prompt has no answer; leave the line out": {
        "prompt": "a",
        "answer": " ",
    },
    "line 21: expected the texts of prompt and answer, or messages": {"prompt": "a"},
    "line 21: expected the texts of .* with a role of system, user": {
        "messages": [{"role": "bot", "content": "a"}]
    },
    "line 21: the prompt has no answer": {"messages": CHAT[:2]},
    "line 21: expected at most 171 tokens, found [0-9]+; give a larger window": {
        "prompt": 199 * "a",
        "answer": "b",
    },
}


@pytest.mark.parametrize("said", REFUSED)
def test_lines_that_are_no_examples_are_refused(said, tmp_path):
    with one_line(said, tmp_path / "a.jsonl"):
        read(tmp_path / "a.jsonl", [*LINES, REFUSED[said]])


def test_other_files_are_refused(tmp_path):
    with one_line("a test share of 0.1 leaves one side of 4 examples empty"):
        read(tmp_path / "a.jsonl", LINES[:4])
    path = tmp_path / "a.jsonl"
    long = [*LINES, {"prompt": 199 * "a", "answer": "b"}]
    assert len(read(path, long, long="drop").x_train) == 18
    with one_line("line 21: 'who' is missing; say whose it is", path):
        read(path, long, owner="who")
    with one_line("expected two or more examples that fit", path):
        read(path, long[-1:], long="drop")
    path.write_text('{"prompt": "a", "answer": "b"}\n[1, 2]\n')
    with one_line("line 2: expected a JSON object .* correct it", path):
        fm.data.from_jsonl(path)
    path.write_text("\n")
    with one_line("has no lines; give prompts with answers", path):
        fm.data.from_jsonl(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        fm.data.from_jsonl(tmp_path / "none")


@pytest.mark.slow
def test_adapters_learn_answers_in_every_average(tmp_path):
    data = read(tmp_path / "a.jsonl", owner="who")
    model = fm.models.llama(256, 170, 16, 1, 2)
    frozen = fm.tasks.language(model, data).init(jax.random.key(0))
    parts_ = fm.partition.by_owner(data.owners)
    how = {"local_steps": 2, "batch_size": 4, "cohort": 2}
    plain = (fm.fedit, fm.rolora, fm.ffa_lora, fm.flexlora)
    for make in (*plain, fm.flora, fm.fedex_lora):
        folded = make not in plain
        task = fm.tasks.lora.lora_language(model, frozen, data, rank=2, folded=folded)
        simulation = fm.federate(make(lr=0.1), task, data, parts_, **how)
        _, records = fm.run(simulation, simulation.init(jax.random.key(0)), rounds=2)
        assert records[-1]["train_loss"] < records[0]["train_loss"], make.__name__

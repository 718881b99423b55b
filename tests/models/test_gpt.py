"""Language models against Hugging Face's, whose numbers write_gpt_fixtures.py wrote."""

import json
import math
import shutil
from functools import cache, partial
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon.models import (
    GPT,
    from_hugging_face,
    generate,
    llama,
    to_hugging_face,
)
from fedjax_muon.models.gpt import Rotary
from fedjax_muon.models.vit import Attention
from fedjax_muon.transforms import hidden_matrices
from tests.support.jaxprs import equations
from tests.support.packages import needs
from tests.support.parity import by_path, drawn, dropouts

safetensors = needs("safetensors.numpy", "export")
FOLDER = Path(__file__).parent / "gpt_fixtures"
CASES = ("gpt2_tied", "gpt2_untied", "llama_untied", "llama_grouped", "qwen2_tied")
KEY = jax.random.key(0)
SIZES = {"vocabulary": 61, "context": 14, "width": 16, "depth": 2, "heads": 4}
SMALL = {"gpt2": GPT(**SIZES), "llama": llama(**SIZES, key_heads=2)}
TOKENS = np.random.default_rng(0).integers(61, size=(2, 12))
equal = np.testing.assert_array_equal


@cache
def loaded(name):
    tensors = safetensors.load_file(FOLDER / name / "expected.safetensors")
    return *from_hugging_face(FOLDER / name), tensors


def shapes(model):
    return jax.eval_shape(model.init, KEY, TOKENS[:, :1])["params"]


def loss(model, params, tokens):
    """Mean cross-entropy of the tokens after the first, and the logits."""
    logits = model.apply({"params": params}, tokens)
    losses = optax.softmax_cross_entropy_with_integer_labels
    return losses(logits[:, :-1], tokens[:, 1:]).mean(), logits


def differentiated(model, params, tokens):
    function = jax.value_and_grad(partial(loss, model), has_aux=True)
    return jax.jit(function)(params, jnp.asarray(tokens))


def copied(folder, name, tensors=None, **config):
    """A copy of a checkpoint with other tensors, or with other words in config.json."""
    folder.mkdir(exist_ok=True)
    said = json.loads((FOLDER / name / "config.json").read_text()) | config
    said = {key: value for key, value in said.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(said))
    if tensors is None:
        tensors = stored(name)
    safetensors.save_file(tensors, folder / "model.safetensors")
    return folder


def stored(name):
    return safetensors.load_file(FOLDER / name / "model.safetensors")


# ---------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_equal_transformers(name, tmp_path):
    model, params, expected = loaded(name)
    (value, logits), gradient = differentiated(model, params, expected["tokens"])
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-4)
    assert math.isclose(value, expected["loss"], rel_tol=1e-5)
    tensors = safetensors.load_file(FOLDER / name / "gradients.safetensors")
    _, theirs = from_hugging_face(copied(tmp_path, name, tensors))
    for path, leaf in by_path(theirs).items():
        error = np.linalg.norm(by_path(gradient)[path] - leaf)
        # biases of keys have no effect, so that their gradients are errors alone
        assert error <= 1e-4 * np.linalg.norm(leaf) + 1e-6, path


def test_the_defaults_are_those_of_transformers():
    assert loaded("gpt2_tied")[0] == GPT(61, 14, 16, 2, 4)
    options = {"key_heads": 4, "head_width": 4, "hidden": 24, "epsilon": 1e-2}
    assert loaded("llama_untied")[0] == llama(61, 256, 16, 2, 4, **options)


@pytest.mark.parametrize("name", SMALL)
def test_logits_do_not_depend_on_later_tokens(name):
    model, run = SMALL[name], jax.jit(SMALL[name].apply)
    params = jax.tree.map(jnp.float32, drawn(shapes(model)))
    before = run({"params": params}, TOKENS)
    for place in (1, 6, 11):
        tokens = TOKENS.copy()
        tokens[:, place:] = (tokens[:, place:] + 7) % 61
        after = run({"params": params}, tokens)
        equal(after[:, :place], before[:, :place])
        assert np.all(np.any(after[:, place:] != before[:, place:], axis=-1))


def test_causal_attention_takes_a_bias_and_a_mask():
    """It is the attention of the vision transformer with one mask more."""
    causal = Attention(2, 4, True, nn.initializers.normal(), None, causal=True)
    usual = causal.clone(causal=False)
    rng = np.random.default_rng(0)
    x, bias = (jnp.float32(rng.normal(size=s)) for s in ((2, 5, 8), (1, 2, 5, 5)))
    mask = np.eye(5, dtype=bool) | (rng.random((2, 1, 5, 5)) < 0.5)
    params = causal.init(KEY, x)
    expected = usual.apply(params, x, bias, mask & np.tri(5, dtype=bool)[None, None])
    found = causal.apply(params, x, bias, mask)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert not np.allclose(found, causal.apply(params, x), atol=1e-3)


def test_the_embedding_of_a_tied_model_gets_both_gradients():
    model = SMALL["gpt2"]
    params = jax.tree.map(jnp.float32, drawn(shapes(model)))
    table = params["tokens"]["embedding"]
    _, tied = differentiated(model, params, TOKENS)
    apart = params | {"head": {"kernel": table.T}}
    _, both = differentiated(model.clone(tied=False), apart, TOKENS)
    total = both["tokens"]["embedding"] + both["head"]["kernel"].T
    np.testing.assert_allclose(tied["tokens"]["embedding"], total, rtol=1e-4, atol=1e-6)


def test_losses_at_first():
    """Of equal logits, and of those of the usual variance: width 0.02^2."""
    model = GPT(61, 14, 256, 2, 4, tied=False)
    params = model.init(KEY, TOKENS)["params"]
    first, _ = loss(model, params, TOKENS)
    assert math.isclose(first, math.log(61) + 256 * 0.02**2 / 2, abs_tol=0.05)
    of_zeros = params | {"head": {"kernel": jnp.zeros((256, 61))}}
    zero, _ = loss(model, of_zeros, TOKENS)
    assert math.isclose(zero, math.log(61), rel_tol=1e-6)
    for name, std in (("up", 0.02), ("down", 0.02 / math.sqrt(4))):
        kernel = params["Block_1"]["network"][name]["kernel"]
        assert math.isclose(np.std(kernel), std, rel_tol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_batch_is_learned_by_heart(name):
    model, rule = SMALL[name], optax.adam(0.01)

    def step(state, _):
        value, gradient = jax.value_and_grad(lambda p: loss(model, p, TOKENS)[0])(
            state[0]
        )
        updates, opt = rule.update(gradient, state[1])
        return (optax.apply_updates(state[0], updates), opt), value

    params = model.init(KEY, TOKENS)["params"]
    start = params, rule.init(params)
    _, losses = jax.jit(partial(jax.lax.scan, step, length=200))(start, None)
    assert losses[-1] < 0.1 < losses[0]


# ----------------------------------------------------------------- sizes and layouts


def count(v, n, d, layers, ff, kv, *, llama, tied):
    if not llama:
        return v * d + n * d + layers * (12 * d * d + 13 * d) + 2 * d
    block = 2 * d * d + 2 * d * kv + 3 * d * ff + 2 * d
    return (1 if tied else 2) * v * d + layers * block + d


@pytest.mark.parametrize(
    ("model", "formula", "total"),
    [
        (GPT(), (50257, 1024, 768, 12, 3072, 768), 124_439_808),
        (
            llama(49152, 2048, 576, 30, 9, key_heads=3, tied=True),
            (49152, 0, 576, 30, 1536, 192),
            134_515_008,  # SmolLM-135M
        ),
        (
            llama(128_256, 2**17, 2048, 16, 32, key_heads=8, hidden=8192, tied=True),
            (128_256, 0, 2048, 16, 8192, 512),
            1_235_814_400,  # Llama-3.2-1B
        ),
    ],
)
def test_parameters(model, formula, total):
    ours = sum(p.size for p in jax.tree.leaves(shapes(model)))
    tied = model.tied
    assert ours == count(*formula, llama=model.gated, tied=tied) == total


@pytest.mark.parametrize("name", SMALL)
def test_muon_has_the_kernels_of_blocks_and_adam_the_others(name):
    params = shapes(SMALL[name])
    numbers = hidden_matrices(params)
    kinds = by_path(numbers, lambda n: n is None or hasattr(n, "output_axis"))
    kernels = ["attention/query", "attention/key", "attention/value", "attention/out"]
    kernels += ["network/up", "network/down"] + ["network/gate"] * (name == "llama")
    muon = {f"Block_{i}/{kernel}/kernel" for i in range(2) for kernel in kernels}
    assert {path for path, n in kinds.items() if n is not None} == muon
    if name == "gpt2":
        norms = ("Block_0/attention_norm", "Block_0/network_norm")
        norms += ("Block_1/attention_norm", "Block_1/network_norm", "norm")
        adam = {path.replace("/kernel", "/bias") for path in muon}
        adam |= {f"{norm}/{leaf}" for norm in norms for leaf in ("scale", "bias")}
        adam |= {"tokens/embedding", "positions/embedding"}
    else:
        norms = [
            f"Block_{i}/{x}_norm" for i in range(2) for x in ("attention", "network")
        ]
        adam = {f"{norm}/scale" for norm in (*norms, "norm")}
        adam |= {"tokens/embedding", "head/kernel"}
    assert kinds.keys() - muon == adam


@pytest.mark.parametrize("name", SMALL)
def test_blocks_computed_anew_have_the_same_gradients(name):
    model = SMALL[name]
    params = jax.tree.map(jnp.float32, drawn(shapes(model)))
    anew = model.clone(remat=True)
    program = jax.make_jaxpr(jax.grad(lambda p: loss(anew, p, TOKENS)[0]))(params)
    names = [e.primitive.name for e in equations(program.jaxpr)]
    assert sum(n in ("remat", "remat2", "checkpoint") for n in names) >= 2
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    pair = (differentiated(one, params, TOKENS)[1] for one in (model, anew))
    jax.tree.map(close, *pair)


def test_where_dropout_acts():
    model = SMALL["gpt2"].clone(dropout=0.1)
    seen = dropouts(lambda: shapes(model))
    block = [((2, 4, 1, 1), 0.1), ((2, 1, 16), 0.1), ((2, 1, 16), 0.1)]
    assert seen == [((2, 1, 16), 0.1), *block, *block]


# --------------------------------------------------------------------------- sampling


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.7, 5), (1.0, 1)])
def test_tokens_are_those_that_are_drawn_without_a_cache(name, temperature, top_k):
    model, length = SMALL[name], 9
    with jax.enable_x64(True):
        params = jax.tree.map(lambda p: 3 * jnp.asarray(p), drawn(shapes(model)))
        run = jax.jit(lambda tokens: model.apply({"params": params}, tokens))
        tokens = np.zeros((2, 14), int)
        tokens[:, :5] = TOKENS[:, :5]
        for i in range(length):
            logits = np.array(run(tokens)[:, 4 + i])
            if top_k:
                logits[logits < np.sort(logits)[:, -top_k, None]] = -np.inf
            key = jax.random.fold_in(KEY, i)
            tokens[:, 5 + i] = jax.random.categorical(key, logits / temperature)
        options = {"temperature": temperature, "top_k": top_k}
        found = generate(model, params, TOKENS[:, :5], length, KEY, **options)
        equal(found, tokens)
        if top_k == 1:
            one = generate(model, params, TOKENS[0, :5], length, KEY, top_k=1)
            equal(one, tokens[0])


# ------------------------------------------------------------------------ checkpoints


def written(model, params):
    """The tensors of parameters, by other code than what reads them."""
    of_gpt2, found, t = not model.gated, {}, np.transpose
    table, norm = params["tokens"]["embedding"], params["norm"]
    if of_gpt2:
        found |= {"transformer.wte.weight": table}
        found |= {"transformer.wpe.weight": params["positions"]["embedding"]}
        found |= {"transformer.ln_f.weight": norm["scale"]}
        found |= {"transformer.ln_f.bias": norm["bias"]}
    else:
        found |= {
            "model.embed_tokens.weight": table,
            "model.norm.weight": norm["scale"],
        }
    if not model.tied:
        found["lm_head.weight"] = t(params["head"]["kernel"])
    for i in range(model.depth):
        block = params[f"Block_{i}"]
        one, two = block["attention"], block["network"]
        norms = block["attention_norm"], block["network_norm"]
        if not of_gpt2:
            start = f"model.layers.{i}."
            for name, layer in one.items():
                found[f"{start}self_attn.{name[0]}_proj.weight"] = t(layer["kernel"])
                if model.query_biases and name != "out":
                    found[f"{start}self_attn.{name[0]}_proj.bias"] = layer["bias"]
            for name, layer in two.items():
                found[f"{start}mlp.{name}_proj.weight"] = t(layer["kernel"])
            found[f"{start}input_layernorm.weight"] = norms[0]["scale"]
            found[f"{start}post_attention_layernorm.weight"] = norms[1]["scale"]
            continue
        start = f"transformer.h.{i}."
        for ours, theirs in (("kernel", "weight"), ("bias", "bias")):
            three = [one[name][ours] for name in ("query", "key", "value")]
            found[f"{start}attn.c_attn.{theirs}"] = np.concatenate(three, axis=-1)
            found[f"{start}attn.c_proj.{theirs}"] = one["out"][ours]
            found[f"{start}mlp.c_fc.{theirs}"] = two["up"][ours]
            found[f"{start}mlp.c_proj.{theirs}"] = two["down"][ours]
        for j in (0, 1):
            found[f"{start}ln_{j + 1}.weight"] = norms[j]["scale"]
            found[f"{start}ln_{j + 1}.bias"] = norms[j]["bias"]
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_is_read_to_its_place(name):
    model, params, _ = loaded(name)
    ours, theirs = written(model, params), stored(name)
    assert ours.keys() == theirs.keys()
    for path, tensor in theirs.items():
        equal(ours[path], tensor, err_msg=path)


OLD_ROPE = {
    "rope_parameters": "absent",
    "rope_theta": 10_000.0,
    "rope_scaling": {
        "type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}


def in_parts(folder):
    """The file of a checkpoint as two, and their index."""
    whole = folder / "model.safetensors"
    tensors = safetensors.load_file(whole)
    whole.unlink()
    places = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for part in {*places.values()}:
        some = {n: x for n, x in tensors.items() if places[n] == part}
        safetensors.save_file(some, folder / part)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_old_names_and_parts_give_the_same_models(tmp_path):
    buffers = {"h.0.attn.bias": np.ones((1, 1, 14, 14)), "h.1.attn.masked_bias": 1}
    buffers = {name: np.array(value, np.float32) for name, value in buffers.items()}
    tensors = stored("gpt2_tied")
    bare = {name.removeprefix("transformer."): x for name, x in tensors.items()}
    again = {"lm_head.weight": bare["wte.weight"]}
    usual = {"tie_word_embeddings": "absent", "n_inner": "absent"}
    old = copied(tmp_path / "old", "gpt2_tied", bare | buffers | again, **usual)
    scaled = in_parts(copied(tmp_path / "parts", "llama_grouped", **OLD_ROPE))
    for name, folder in (("gpt2_tied", old), ("llama_grouped", scaled)):
        model, params = from_hugging_face(folder)
        assert model == loaded(name)[0]
        jax.tree.map(equal, params, loaded(name)[1])


def test_half_precision_becomes_float32(tmp_path):
    half = {k: x.astype(jnp.bfloat16) for k, x in stored("llama_untied").items()}
    _, params = from_hugging_face(copied(tmp_path, "llama_untied", half))
    for path, leaf in by_path(loaded("llama_untied")[1]).items():
        rounded = leaf.astype(jnp.bfloat16).astype(jnp.float32)
        equal(by_path(params)[path], rounded, strict=True)


ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
GPT2, LLAMA = "gpt2_tied", "llama_untied"


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        (
            GPT2,
            {"model_type": "mistral"},
            "unknown model_type 'mistral'; .* gpt2, llama",
        ),
        (GPT2, {"model_type": "absent"}, "model_type"),
        (GPT2, {"n_embd": "absent"}, "n_embd"),
        (GPT2, {"n_embd": 3.5}, "width must be a whole number, got 3.5"),
        (GPT2, {"n_layer": 2**40}, "n_layer must be at most 1024"),
        (GPT2, {"n_head": 3}, "heads must divide its width 16, got 3"),
        (GPT2, {"activation_function": "gelu"}, "unknown activation_function 'gelu'"),
        (GPT2, {"scale_attn_weights": False}, "scale_attn_weights must be True"),
        (GPT2, {"quantization_config": {}}, "quantization_config must be None, got"),
        (GPT2, {"layer_norm_epsilon": -1.0}, "epsilon must lie in"),
        (GPT2, {"tie_word_embeddings": 1}, "tie_word_embeddings must be a bool, got 1"),
        (LLAMA, {"attention_bias": True}, "attention_bias must be False, got True"),
        (LLAMA, {"rope_parameters": ROPE | {"rope_type": "yarn"}}, "unknown rope_type"),
        (LLAMA, {"rope_parameters": ROPE | {"share": 1}}, "type default need .* share"),
        (LLAMA, {"rope_parameters": ROPE | {"rope_theta": 0}}, "rope_theta must lie"),
        (GPT2, {"n_layer": 3}, r"missing h\.2\.attn\.c_attn\.bias, .*unexpected none"),
        (GPT2, {"n_layer": 1}, r"missing none; unexpected h\.1\.attn\.c_attn\.bias"),
        (GPT2, {"n_inner": 32}, r"h\.0\.mlp\.\S+ must be .* \[.*32.*\], got"),
        (GPT2, {"tie_word_embeddings": False}, r"missing lm_head\.weight; unexp"),
    ],
)
def test_what_is_not_known_is_refused(name, config, message, tmp_path):
    with pytest.raises(ValueError, match=message) as caught:
        from_hugging_face(copied(tmp_path, name, **config))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_files_are_refused(tmp_path):
    refused = partial(pytest.raises, ValueError)
    untied = stored(GPT2) | {"lm_head.weight": np.ones((61, 16), np.float32)}
    with refused(match="not a copy of the embedding"):
        from_hugging_face(copied(tmp_path, GPT2, untied))
    twice = stored(GPT2) | {"ln_f.bias": np.ones(16, np.float32)}
    with refused(match=r"model\.safetensors: two tensors ln_f\.bias"):
        from_hugging_face(copied(tmp_path, GPT2, twice))
    whole = {k: x.astype(int) for k, x in stored(GPT2).items()}
    with refused(match=r"must be floating-point numbers .*got int64"):
        from_hugging_face(copied(tmp_path, GPT2, whole))
    folder = in_parts(copied(tmp_path, GPT2))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    with refused(match=r"index\.json: expected .*in another directory"):
        from_hugging_face(folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 40)
    with refused(match=r"model\.safetensors: expected tensors .*; download it again"):
        from_hugging_face(folder)
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist; give"):
        from_hugging_face(folder)


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_what_transformers_wrote(name, tmp_path):
    """The tensors bit by bit, and all that config.json says of the model."""
    model, params, expected = loaded(name)
    folder = to_hugging_face(tmp_path / "new", model, params)
    ours = safetensors.load_file(folder / "model.safetensors")
    theirs = stored(name)
    assert ours.keys() == theirs.keys()
    for path, tensor in theirs.items():
        equal(ours[path], tensor, err_msg=path, strict=True)
    said, known = (
        json.loads((place / "config.json").read_text())
        for place in (folder, FOLDER / name)
    )
    for key in said.keys() & known.keys() - {"bos_token_id", "eos_token_id"}:
        assert said[key] == known[key], key
    assert said.keys() - known.keys() <= {"rope_theta", "rope_scaling"}
    rope = said.get("rope_scaling", {}) | {"rope_theta": said.get("rope_theta")}
    for key, value in known.get("rope_parameters", {}).items():
        assert rope.get(key, "default") == value, key
    again, read = from_hugging_face(folder)
    assert again == model
    logits = again.apply({"params": read}, expected["tokens"])
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        GPT(**SIZES, hidden=20, tied=False, epsilon=1e-3, activation=nn.silu),
        GPT(**SIZES, dropout=0.1, remat=True, dtype=jnp.bfloat16),
        llama(**SIZES, rotary=Rotary(5e5), tied=True),
        llama(**SIZES, key_heads=1, head_width=6, rotary=Rotary(1e4, 8.0, trained=8)),
        llama(**SIZES, key_heads=2, query_biases=True, tied=True),
    ],
)
def test_models_of_all_sizes_are_written_and_read(model, tmp_path):
    params = jax.tree.map(jnp.float32, drawn(shapes(model)))
    read, back = from_hugging_face(to_hugging_face(tmp_path / "new", model, params))
    jax.tree.map(equal, back, params)
    plain = model.clone(dropout=0.0, remat=False, dtype=None)
    logits = (m.apply({"params": params}, TOKENS) for m in (read, plain))
    equal(*logits)


def test_what_transformers_does_not_have_is_not_written(tmp_path):
    params = jax.tree.map(jnp.float32, drawn(shapes(SMALL["gpt2"])))
    for model, said in {
        GPT(**SIZES, gated=True): "transformers has no llama with the layers of GPT",
        GPT(**SIZES, biases=False): "transformers has no gpt2 with the layers of GPT",
        GPT(**SIZES, head_width=6): "transformers has no gpt2 with the layers of GPT",
        GPT(**SIZES, activation=nn.relu): "unknown activation_function 'unknown'",
        GPT(**SIZES, tied=False): "params must be those of the model; for adapters, ",
    }.items():
        with pytest.raises(ValueError, match=said):
            to_hugging_face(tmp_path / "new", model, params)
    assert not (tmp_path / "new").exists()
    (tmp_path / "config.json").touch()
    with pytest.raises(ValueError, match="is not empty; choose another directory"):
        to_hugging_face(tmp_path, SMALL["gpt2"], params)


headless = lambda tensors: {k: x for k, x in tensors.items() if "head" not in k}
begun = lambda start: lambda tensors: {f"{start}{k}": x for k, x in tensors.items()}
classified = lambda head: lambda tensors: {**headless(tensors), head: np.ones((2, 16))}
OTHERS = [  # what is made of the tensors, and what is said
    (begun("_orig_mod."), r"unexpected _orig_mod.*of torch.compile: save model\._orig"),
    (begun("module."), "it is of DistributedDataParallel: save model.module$"),
    (begun("module._orig_mod."), "of DistributedDataParallel: save model.module$"),
    (begun("base_model.model."), "it is of PEFT: save model.merge_and_unload"),
    (headless, "it is a model without a head: use a causal"),
    (classified("score.weight"), "it is of a classifier: use a causal language"),
    (classified("classifier.bias"), "it is of a classifier: use a causal language"),
]


@pytest.mark.parametrize(("change", "said"), OTHERS)
def test_weights_of_wrapped_and_other_models_are_named(change, said, tmp_path):
    tensors = {k: np.float32(x) for k, x in change(stored(LLAMA)).items()}
    with pytest.raises(ValueError, match=said):
        from_hugging_face(copied(tmp_path, LLAMA, tensors))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("pytorch_model.bin", "tf_model.h5"), "pytorch_model.bin, tf_model.h5 and no"),
        (
            ("pytorch_model-00001-of-00002.bin",),
            "00002.bin and no model.safetensors; sa",
        ),
        (("small.Q4.gguf",), r"has small.Q4.gguf and no model.safetensors; save the"),
        (("adapter_model.safetensors",), "adapter_model.safetensors and no model.saf"),
        (("adapter_model.bin",), r"adapters of PEFT after merge_and_unload\("),
    ],
)
@pytest.mark.parametrize("config", [True, False])
def test_weights_of_other_programs_are_named(names, said, config, tmp_path):
    for name in (*names, *["config.json"] * config):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ValueError, match=said) as caught:
        from_hugging_face(tmp_path)
    assert "\n" not in str(caught.value)

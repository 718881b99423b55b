"""Writes gpt_fixtures: tiny models of transformers, their logits and gradients.

    python tests/models/write_gpt_fixtures.py

It needs torch and transformers, which the tests do not.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

FOLDER = Path(__file__).parent / "gpt_fixtures"
GPT2 = {"vocab_size": 61, "n_positions": 14, "n_embd": 16, "n_layer": 2, "n_head": 4}
DROPOUT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
LLAMA = {
    "vocab_size": 61,
    "max_position_embeddings": 256,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-2,
}
SCALED = {  # of the four rotations, one stays, one is interpolated, two are divided
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8, "rope_parameters": SCALED}
CASES = {
    "gpt2_tied": GPT2LMHeadModel(GPT2Config(**GPT2, **DROPOUT)),
    "gpt2_untied": GPT2LMHeadModel(
        GPT2Config(
            **GPT2,
            **DROPOUT,
            n_inner=20,
            layer_norm_epsilon=1e-2,
            tie_word_embeddings=False,
        )
    ),
    "llama_untied": LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "llama_grouped": LlamaForCausalLM(
        LlamaConfig(**LLAMA, **GROUPED, tie_word_embeddings=True)
    ),
    "qwen2_tied": Qwen2ForCausalLM(
        Qwen2Config(**LLAMA, num_key_value_heads=2, tie_word_embeddings=True)
    ),
}


def write(name: str, model: torch.nn.Module) -> None:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for path, leaf in model.named_parameters():
            # away from zeros and ones, and large enough for uneven attention
            mean = 1.0 if leaf.ndim == 1 and path.endswith("weight") else 0.0
            leaf.copy_(mean + 0.3 * torch.randn_like(leaf))
    tokens = torch.randint(61, (2, 12))
    result = model(tokens, labels=tokens)
    result.loss.backward()
    folder = FOLDER / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    gradients = {path: leaf.grad for path, leaf in model.named_parameters()}
    save_file(gradients, folder / "gradients.safetensors")
    expected = {
        "tokens": tokens,
        "logits": result.logits.detach(),
        "loss": result.loss.detach(),
    }
    save_file(expected, folder / "expected.safetensors")


if __name__ == "__main__":
    torch.manual_seed(0)
    for name, model in CASES.items():
        write(name, model)

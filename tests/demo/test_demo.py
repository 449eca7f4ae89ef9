"""The demo family shows what merging does: skills lost by averaging, kept by adding changes, broken by too much."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import merger
from components.demo import BASE, EXPERTS, FOLDER, accuracy, labels, logits, views

LAMBDAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)
MODELS = {"base": BASE, **EXPERTS}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def mean_accuracy(tensors: dict[str, torch.Tensor]) -> float:
    return float(np.mean(list(accuracy(tensors).values())))


def merged(method: str, **parameters: float | bool) -> dict[str, torch.Tensor]:
    """The three experts merged by the engine, weight 1 each."""
    experts = [{"model": str(folder), "parameters": {"weight": 1}} for folder in EXPERTS.values()]
    bases = {} if method == "linear" else {"base_model": str(BASE)}
    recipe = {"merge_method": method, **bases, "models": experts, "parameters": parameters}
    return merger.merge_in_memory(merger.load_recipe(yaml.safe_dump(recipe)))


@pytest.fixture(scope="module")
def by_lambda() -> dict[float, float]:
    """Mean accuracy over the four views of task arithmetic with weight 1 for each expert."""
    return {lambda_: mean_accuracy(merged("task_arithmetic", **{"lambda": lambda_})) for lambda_ in LAMBDAS}


def test_the_whole_folder_is_smaller_than_three_megabytes():
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 3_000_000


@pytest.mark.parametrize("folder", MODELS.values(), ids=MODELS)
def test_a_model_is_float16_with_a_config_that_describes_it(folder: Path):
    tensors, config = weights(folder), json.loads((folder / "config.json").read_text())
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    blocks = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    assert len(blocks) == config["num_hidden_layers"]
    assert 4 <= len(blocks) <= 6
    assert tensors["layers.0.up.weight"].shape == (config["intermediate_size"], config["hidden_size"])
    assert tensors["head.weight"].shape == (config["num_labels"], config["hidden_size"])


@pytest.mark.parametrize("folder", EXPERTS.values(), ids=EXPERTS)
def test_the_config_of_an_expert_leads_to_the_base(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    assert (folder / config["_name_or_path"]).resolve() == BASE


def test_the_images_are_597_digits_in_four_views():
    assert {view: pixels.shape for view, pixels in views().items()} == dict.fromkeys(
        ["normal", "rotated", "inverted", "mirrored"], (597, 64)
    )
    assert all(pixels.dtype == np.float32 and pixels.min() == 0 and pixels.max() == 1 for pixels in views().values())
    assert set(labels()) == set(range(10))


def test_each_view_turns_the_image_as_its_name_says():
    image = views()["normal"][0].reshape(8, 8)
    turned = {view: pixels[0].reshape(8, 8) for view, pixels in views().items()}
    assert np.array_equal(turned["mirrored"][3], image[3][::-1])
    assert np.array_equal(turned["inverted"], 1 - image)
    assert np.array_equal(turned["rotated"][0], image[:, -1])


RECORDED = {
    "base": {"normal": 0.990, "rotated": 0.146, "inverted": 0.002, "mirrored": 0.385},
    "rotated": {"normal": 0.990, "rotated": 0.992, "inverted": 0.134, "mirrored": 0.402},
    "inverted": {"normal": 0.992, "rotated": 0.243, "inverted": 0.992, "mirrored": 0.374},
    "mirrored": {"normal": 0.987, "rotated": 0.114, "inverted": 0.003, "mirrored": 0.985},
}


@pytest.mark.parametrize("model", MODELS)
def test_the_models_read_as_well_as_the_readme_says(model: str):
    assert accuracy(weights(MODELS[model])) == pytest.approx(RECORDED[model], abs=0.006)


def test_accuracy_is_the_share_of_images_whose_highest_score_is_their_label():
    base = {name: tensor.float() for name, tensor in weights(BASE).items()}
    guesses = [int(logits(base, torch.from_numpy(row[None])).argmax()) for row in views()["mirrored"]]
    assert accuracy(base)["mirrored"] == pytest.approx(np.mean(np.array(guesses) == labels()), abs=0.002)


def test_the_best_merge_keeps_all_skills(by_lambda: dict[float, float]):
    assert max(by_lambda.values()) >= 0.80


def test_the_best_merge_beats_the_plain_average_by_a_fifth(by_lambda: dict[float, float]):
    assert max(by_lambda.values()) >= mean_accuracy(merged("linear")) + 0.20


@pytest.mark.parametrize("folder", MODELS.values(), ids=MODELS)
def test_the_best_merge_beats_every_parent(by_lambda: dict[float, float], folder: Path):
    assert max(by_lambda.values()) >= mean_accuracy(weights(folder)) + 0.15


def test_accuracy_rises_to_one_optimum_and_falls_again(by_lambda: dict[float, float]):
    means = list(by_lambda.values())
    top = means.index(max(means))
    assert means[: top + 1] == sorted(means[: top + 1])
    assert means[top:] == sorted(means[top:], reverse=True)
    assert by_lambda[0.7] == pytest.approx(0.907, abs=0.01)
    assert by_lambda[1.5] <= 0.6

"""Models whose names differ only in what stands before them."""

import pytest

from merger.architecture import prefix_between, prefix_difference

BODY = [f"encoder.layer.{layer}.{part}.weight" for layer in range(4) for part in ("query", "key", "dense")]
BODY += ["embeddings.word_embeddings.weight", "embeddings.LayerNorm.bias"]


def with_prefix(prefix: str) -> list[str]:
    return [prefix + name for name in BODY]


@pytest.mark.parametrize("prefix", ["bert.", "model.", "transformer.", "model.language_model."])
def test_a_prefix_on_one_side_is_found_in_both_directions(prefix: str) -> None:
    assert prefix_difference(with_prefix(prefix), BODY) == ("", prefix)
    assert prefix_difference(BODY, with_prefix(prefix)) == (prefix, "")
    add, strip = prefix_between(with_prefix(prefix), BODY), prefix_between(BODY, with_prefix(prefix))
    assert add is not None
    assert strip is not None
    assert [add(name) for name in BODY] == with_prefix(prefix)
    assert [strip(name) for name in with_prefix(prefix)] == BODY


def test_equal_names_need_nothing() -> None:
    assert prefix_difference(BODY, BODY) is None
    assert prefix_between(BODY, [*BODY, "pooler.dense.weight"]) is None


def test_other_architectures_are_not_aligned() -> None:
    others = [name.replace("encoder.layer", "h").replace("query", "q") for name in BODY]
    assert prefix_between(BODY, others) is None
    assert prefix_between(BODY, []) is None


def test_heads_stay_outside_of_the_prefix_and_buffers_come_inside() -> None:
    reference = [*with_prefix("bert."), "cls.predictions.bias"]
    change = prefix_between(reference, [*BODY, "cls.predictions.bias", "embeddings.position_ids", "classifier.weight"])
    assert change is not None
    assert change("cls.predictions.bias") == "cls.predictions.bias"
    assert change("classifier.weight") == "classifier.weight"
    assert change("embeddings.position_ids") == "bert.embeddings.position_ids"


def test_a_head_that_only_the_prefixed_model_has_stays_as_it_is() -> None:
    change = prefix_between(BODY, [*with_prefix("model."), "lm_head.weight"])
    assert change is not None
    assert change("lm_head.weight") == "lm_head.weight"

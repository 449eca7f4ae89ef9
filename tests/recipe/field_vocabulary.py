"""The methods of the field with their parameters, so that recipes can be judged without the methods themselves."""

from merger.recipe import Vocabulary

WEIGHT = frozenset({"weight"})
SPARSE = frozenset({"weight", "density"})
DELTAS = frozenset({"normalize", "rescale", "lambda", "int8_mask"})
NONE: frozenset[str] = frozenset()

VOCABULARY = Vocabulary(
    methods={
        "linear": (frozenset({"normalize"}), WEIGHT),
        "slerp": (frozenset({"t"}), NONE),
        "nuslerp": (frozenset({"nuslerp_flatten", "nuslerp_row_wise"}), WEIGHT),
        "multislerp": (frozenset({"normalize_weights", "eps"}), WEIGHT),
        "karcher": (frozenset({"max_iter", "tol"}), WEIGHT),
        "task_arithmetic": (DELTAS, WEIGHT),
        "ties": (DELTAS, SPARSE),
        "dare_linear": (DELTAS, SPARSE),
        "dare_ties": (DELTAS, SPARSE),
        "breadcrumbs": (DELTAS, SPARSE | {"gamma"}),
        "breadcrumbs_ties": (DELTAS, SPARSE | {"gamma"}),
        "della": (DELTAS, SPARSE | {"epsilon"}),
        "della_linear": (DELTAS, SPARSE | {"epsilon"}),
        "model_stock": (frozenset({"filter_wise"}), NONE),
        "sce": (frozenset({"select_topk", "int8_mask"}), NONE),
        "nearswap": (frozenset({"t"}), NONE),
        "arcee_fusion": (NONE, NONE),
        "ram": (frozenset({"epsilon"}), NONE),
        "passthrough": (NONE, frozenset({"scale"})),
    },
    aliases={"task": "task_arithmetic"},
)

"""Every word the page shows.  Sentences that change with the numbers are functions."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from components.numbers import OUTSIDE, Numbers, Shape

if TYPE_CHECKING:
    from merger import MethodFacts

TITLE = "Mixdesk"
TAGLINE = "Merge models, and see what happens first."
STEPS = (("models", "Models"), ("mix", "Mix"), ("merge", "Merge & share"))
STARTED = "Mixdesk is open at {address}"
CANNOT_START = "Mixdesk cannot start: {reason}"
PORT_TAKEN = "Mixdesk cannot start: port {port} is taken. Stop what uses it, or choose another with --port."
THEME_BUTTON = "Switch between light and dark"
STEPS_LABEL = "Steps"

# Figures -----------------------------------------------------------------------------------

LAYER = "layer"
AGREE = "same direction"
CONFLICT = "opposite directions"
SURVIVES = "survives the vote"
RIGHT_ANSWERS = "right answers"
MERGE = "merge"
BEST_SETTING = "best found"

FIGURE_SKILL = "What the merge can do"
FIGURE_CHANGE = "How far each part moves"
FIGURE_AGREEMENT = "Do the models agree?"
FIGURE_KEPT = "How much of each change is kept"
FIGURE_COSINE = "How alike the changes are"

NEEDS_WHOLE = (
    "This method needs whole tensors, and some are too large to hold: only the smaller ones are shown. "
    "The merge itself is not affected."
)

HOVER_CHANGE = "%{customdata}, %{y}<br>moves by %{z:.2%} of its size<extra></extra>"
HOVER_AGREE = "%{customdata}: %{y:.0%} of the contested values<br>are pulled the same way<extra></extra>"
HOVER_CONFLICT = "%{customdata}: %{y:.0%} of the contested values<br>are pulled in opposite ways<extra></extra>"
HOVER_SURVIVES = "%{customdata}: %{y:.0%} of the weighted changes<br>are left after the vote<extra></extra>"
HOVER_COSINE = "%{x} and %{y}<br>cosine of their changes: %{z:.2f}<extra></extra>"
HOVER_KEPT = "%{customdata}: %{y:.0%} of its change is kept<extra>%{fullData.name}</extra>"
HOVER_SKILL = "%{x} digits: %{y:.0%} right<extra>%{fullData.name}</extra>"

STRIP = {"change": "Change", "agreement": "Agreement", "kept": "Kept", "skill": "Accuracy", "surviving": "Survives"}
STRIP_HINTS = {
    "change": "How far the merge moves all in all, as a share of the size of what it starts from.",
    "agreement": "Of the values that several models change: how many they pull the same way.",
    "kept": "How much of the models' changes the method keeps.",
    "skill": "Right answers on the test images, averaged over the four views.",
    "surviving": "How much of the weighted changes is left after the vote on their direction.",
}


def place(layer: str) -> str:
    """Where a column of the figures stands, in words."""
    return "outside the layers" if layer == OUTSIDE else f"layer {layer}"


def short(name: str, limit: int) -> str:
    """A long name, cut in the middle."""
    return name if len(name) <= limit else f"{name[: limit // 2]}…{name[-(limit // 2 - 1) :]}"


def percent(value: float, digits: int = 0) -> str:
    """A share as people write it; a dash for what does not exist."""
    return f"{value:.{digits}%}" if np.isfinite(value) else "–"


def change_percent(value: float) -> str:
    """A relative change, with one digit more when it is small."""
    return percent(value, 0 if value >= 0.1 else 1 if value >= 0.01 else 2)


def skill_sentence(shape: Shape, numbers: Numbers) -> str:
    if numbers.accuracy is None:
        return "The merge cannot be tried out with these settings."
    mean = float(np.mean(numbers.accuracy))
    parent = float(np.max(np.mean(shape.skills.accuracy, axis=1)))
    lead = f"The merge gets {percent(mean)} of all digits right on average; "
    if mean > parent + 0.005:
        return lead + f"the best single model gets {percent(parent)}: the skills add up."
    worst = int(np.argmin(numbers.accuracy))
    return lead + f"the best single model gets {percent(parent)}. Weakest now: {shape.skills.views[worst]} digits."


def change_sentence(shape: Shape, numbers: Numbers) -> str:
    if not numbers.is_complete:
        return NEEDS_WHOLE
    if not np.isfinite(numbers.change).any():
        return f"The change cannot be measured: values become too large, or {shape.origin} holds only zeros."
    if numbers.total_change < 0.00005:
        return f"Nothing moves: the result holds the very values of {shape.origin}."
    row, column = np.unravel_index(int(np.nanargmax(numbers.change)), numbers.change.shape)
    role, layer = shape.roles[row], shape.layers[column]
    place = role if layer == OUTSIDE else f"{role} in layer {layer}"
    return (
        f"All in all by {change_percent(numbers.total_change)} of the size of {shape.origin}; most in {place} "
        f"({change_percent(float(numbers.change[row, column]))})."
    )


def agreement_sentence(shape: Shape, numbers: Numbers) -> str:
    if not np.isfinite(numbers.agreement).any():
        return "No value is changed by more than one model, so nothing is in conflict."
    lowest = int(np.nanargmin(numbers.agreement))
    who = "both" if len(shape.models) == 2 else "all of them"
    place = "outside the layers" if shape.layers[lowest] == OUTSIDE else f"in layer {shape.layers[lowest]}"
    is_calm = numbers.agreement[lowest] > 0.995
    return (
        f"Where several models change a value, {who} pull the same way in {percent(numbers.total_agreement)} of cases. "
        f"{'Nothing is in conflict.' if is_calm else f'There is most conflict {place}.'}"
    )


def kept_sentence(shape: Shape, numbers: Numbers) -> str:
    if not np.isfinite(numbers.total_kept):
        return "No model's change takes part in this merge, so there is nothing to keep."
    if numbers.total_kept > 0.995:
        return "No change is thinned out before it is mixed. Methods with a density, such as TIES, can do so."
    return f"{percent(numbers.total_kept)} of all changes stay; the rest is set back to {shape.origin}."


def cosine_sentence(shape: Shape, numbers: Numbers) -> str:
    pairs = np.triu_indices(len(shape.models), 1)
    values = numbers.cosine[pairs]
    if not np.isfinite(values).any():
        return f"Too few models differ from {shape.origin} to compare their changes."
    highest = int(np.nanargmax(values))
    first, second = shape.models[pairs[0][highest]], shape.models[pairs[1][highest]]
    value = float(values[highest])
    meaning = (
        "they changed the same things and will add up"
        if value > 0.5
        else "they overlap in part"
        if value > 0.15
        else "the models changed different things, which merges well"
        if value > -0.15
        else "they pull against each other"
    )
    return f"Closest pair: {first} and {second} at {value:.2f}; {meaning}. 1 is the same change, 0 unrelated."


# Models ------------------------------------------------------------------------------------

MODELS_TITLE = "Choose your models"
MODELS_LEAD = "Fine-tunes of one model merge best. Nothing large is read yet: only names, shapes and configs."
PATH_LABEL = "Folder of a model"
PATH_PLACEHOLDER = "a folder with safetensors files, such as ~/models/my-fine-tune"
ADD = "Add"
DEMO_INTRO = "Nothing at hand?"
DEMO_DIGITS = "Digits: three skills"
TO_MIX = "Next: mix"
BASE = "Use as base"
NO_BASE = "None of them is the base"
ROLE_BASE = "Base"
ROLE_EXPERT = "Expert"
BASE_LEGEND = "Which model is the base that the others were fine-tuned from?"
USE_AS_BASE = "Use {name} as the base"
REMOVE = "Remove {name}"
NO_MODELS = "No models yet. Add folders above, or start with the digits demo."
FITS = "All models have the same architecture and shapes."
ONE_MODEL = "Add at least one more model to merge it with."
CANNOT_ADD = "This model could not be added."
CANNOT_OPEN = "Not all models can be opened."
CANNOT_CHANGE = "This change could not be made."
CANNOT_RESTORE = "Not everything could be shown."


def facts(model: Any) -> str:
    """A model in one line: size, number format, architecture, licence, bytes."""
    known = (
        f"{count(model.parameters)} parameters",
        model.dtype,
        model.architecture,
        None if not model.layers else f"{model.layers} layers",
        model.licence,
        size(model.bytes),
    )
    return " · ".join(str(part) for part in known if part)


def count(number: float) -> str:
    """A large number, short: 163 K, 22.7 M, 1.5 B."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number:.0f}"


def size(number: float) -> str:
    """Bytes as people write them."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number:.0f} bytes"


# Mix ---------------------------------------------------------------------------------------

MIX_TITLE = "Mix, and watch"
LEAD = "Move the sliders: the figures show what the merge would be. Nothing is written until you start it in step 3."
LEAD_DEMO = (
    "Drag <strong>Lambda</strong> to the right and watch the indigo bars: the skills wake up, are all there near 0.7, "
    "and break apart far beyond it."
)
LEAD_STILL = "The figures show what this recipe would make. Nothing is written until you start it in step 3."
ONLY_BASE = "There is nothing but the base to mix."
ONLY_BASE_HINT = "Add a model that was fine-tuned from it in step 1."
STACKED = "the layers it is put together from"
NOTHING_TO_MIX = "There is nothing to mix yet: choose models in step 1."
METHOD = "Method"
YAML_TITLE = "Recipe as text (YAML)"
YAML_LABEL = "Recipe"
APPLY = "Apply"
MERGED = "the merge"
MAP_SHOWS = "Whose change the map shows"
TO_MERGE = "Next: merge"
UNPIN = "Use the sliders instead"
PINNED = (
    "This recipe says more than the sliders can show, such as settings per layer. It is used exactly as it is "
    "written below."
)
BASE_UNUSED = "This method does not mix {name}; it only takes config and tokenizer from it."
BASE_NEEDED = "This method needs a base. Choose it in step 1."


def lead(names: Sequence[str]) -> str:
    """What to drag, by the labels of a method's sliders."""
    if not names:
        return LEAD_STILL
    bold = [f"<strong>{html.escape(name)}</strong>" for name in names]
    listed = " or ".join(filter(None, (", ".join(bold[:-1]), bold[-1])))
    return f"Drag {listed}: the figures show what the merge would be. Nothing is written until you start it in step 3."


def models_of(facts: MethodFacts) -> str:
    """How many models a method takes, the base not counted."""
    low, high = facts.min_models, facts.max_models
    number = low if high is None else high
    word = "at least" if high is None else "exactly" if low == high else "at most"
    return f"{word} {number} model{'' if number == 1 else 's'}"


def wrong_count(facts: MethodFacts, count: int, has_base: bool) -> tuple[str, str]:
    """A method and a number of models that do not go together, and what to do about it."""
    beside = " besides the base" if has_base and facts.base in ("required", "optional") else ""
    told = f"{facts.pretty_name} merges {models_of(facts)}{beside}; there {'is' if count == 1 else 'are'} {count}."
    missing = facts.min_models - count
    step = f"Add {missing}" if missing > 0 else f"Remove {count - (facts.max_models or count)}"
    return told, f"{step} in step 1, or choose another method."


CANNOT_DRAW = "These settings cannot be shown."
CANNOT_APPLY = "This recipe cannot be used."

PARAMETER_LABELS = {
    "weight": "Weight",
    "density": "Density",
    "lambda": "Lambda",
    "epsilon": "Epsilon",
    "gamma": "Gamma",
    "t": "How far (t)",
    "scale": "Scale",
    "normalize": "Normalize weights",
    "rescale": "Rescale what is kept",
    "int8_mask": "8-bit mask",
    "alpha": "Overlap limit (alpha)",
    "common_space_fraction": "Directions in common",
    "eps": "Smallest norm (eps)",
    "filter_wise": "Row by row",
    "k": "Models that must need it (k)",
    "lambda_t": "Strictness (lambda_t)",
    "max_iter": "Most steps",
    "normalize_weights": "Normalize weights",
    "nuslerp_flatten": "Whole tensor as one vector",
    "nuslerp_row_wise": "Vectors along dimension 0",
    "r": "Enlargement (r)",
    "rank_fraction": "Directions to keep",
    "select_topk": "Elements to keep (top k)",
    "tol": "Tolerance",
}


def parameter_label(name: str) -> str:
    """A parameter's name as a control shows it."""
    return PARAMETER_LABELS.get(name, name.replace("_", " ").capitalize())


METHOD_ORDER = (
    *("task_arithmetic", "ties", "dare_ties", "dare_linear", "della", "della_linear"),
    *("breadcrumbs", "breadcrumbs_ties", "sce", "consensus_ta", "pcb", "ram", "ramplus_tl"),
    *("tsv_m", "iso_c", "iso_cts"),
    *("linear", "model_stock", "karcher", "multislerp", "nuslerp", "slerp", "nearswap", "arcee_fusion", "passthrough"),
)
"""The usual ones first, each beside its kin: changes added up, matrices, then averages, and few models at the end."""


def method_choices(methods: Mapping[str, MethodFacts]) -> list[tuple[str, str]]:
    """Labels and names for the list of methods; plugins come last."""
    known = {name: place for place, name in enumerate(METHOD_ORDER)}
    ordered = sorted(methods, key=lambda name: (known.get(name, len(known)), methods[name].pretty_name.lower()))
    return [(method_label(methods[name]), name) for name in ordered]


def method_label(facts: MethodFacts) -> str:
    """A method's name in the list, with the number of models where it is limited."""
    if facts.max_models is None:
        return facts.pretty_name
    models = "1 model" if facts.max_models == 1 else f"{facts.max_models} models"
    return f"{facts.pretty_name} ({'base and ' if facts.base == 'required' else ''}{models})"


def not_shown(names: Sequence[str]) -> str:
    """What only the YAML can set."""
    return f"Set in the recipe below: {', '.join(names)}." if names else ""


# Merge -------------------------------------------------------------------------------------

MERGE_TITLE = "Merge and take it home"
MERGE_LEAD = "The merge runs in the background; you can close this page and come back."
NAME = "Name of the result"
NAME_DEFAULT = "my-merge"
DTYPE = "Number format"
DTYPES = [("as the base model", ""), *((name, name) for name in ("bfloat16", "float16", "float32", "float64"))]
NO_MODELS_YET = "Choose models in step 1 first."
START = "Start merge"
CANCEL = "Cancel"
RESUME = "Resume"
CANNOT_MERGE = "This cannot be merged."
CANNOT_DO = "That did not work."
CARD_TITLE = "Model card"
CARD_LABEL = "README.md"
RECIPE_TITLE = "Recipe"
RECIPE_LABEL = "recipe.yaml"

FORECAST_METHOD = "Method"
FORECAST_TENSORS = "Tensors to merge"
FORECAST_READ = "To read"
FORECAST_WRITE = "To write"
FORECAST_MEMORY = "Working memory"

JOB_LABEL = "Merge"
JOB_STOPPED = {"failed": "The merge failed.", "interrupted": "The merge was interrupted."}
JOB_STATES = {
    "queued": "{name} is waiting",
    "running": "Merging {name}",
    "cancelling": "Stopping {name}",
    "cancelled": "{name} was cancelled",
    "interrupted": "{name} was interrupted",
    "failed": "{name} failed",
    "verified": "{name} is ready",
    "expired": "The files of {name} were deleted",
}
JOB_HINTS = {
    "cancelled": "What was finished is kept: Resume goes on from there.",
    "interrupted": "The server stopped in the middle: Resume goes on from there.",
    "failed": "",
    "expired": "Its time was over. Start it again to have them back.",
}
PHASES = {"starting": "Opening the models", "packing": "Checking the files"}
NO_SUCH_JOB = "This link leads to no merge: it was deleted, or the link is incomplete."
QUEUED = "It starts in a moment."
QUEUED_BEHIND = "{count} before it."
TENSOR_OF = "tensor {done} of {total}"
IN_LAYER = "layer {layer}"
LEFT = "{time} left"
VERIFIED_IN = "Written, read back and checked in {time}."
RESULT_GONE = "The result cannot be shown."
RESULT_LABEL = "Result"
RESULT_TITLE = "The result"
ALL_FINITE = "No value is infinite or not a number."
MEAN = "mean"
SKILL_CAPTION = "Right answers on 597 test images that no model was trained on"
DOWNLOAD_ALL = "Download everything (zip, {size})"
SINGLE_FILES = "Single files ({count})"
NOT_YOURS = "Only the browser that started this merge can download it."
USAGE = "How to use it"


def announced(title: str, percent: int) -> str:
    """What a screen reader hears every tenth."""
    return f"{title}: {percent} percent"


def speed(bytes_per_second: float) -> str:
    """How fast the result grows."""
    return f"{size(bytes_per_second)}/s"


def duration(seconds: float) -> str:
    """A time in words for short ones, as minutes and seconds for longer ones."""
    if seconds < 1:
        return "under a second"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def verified(files: int, tensors: int, number: int) -> str:
    """What was checked after writing."""
    where = "1 file" if files == 1 else f"{files} files"
    return f"{tensors:,} tensors in {where} ({size(number)}) were read back and are what was computed."


def non_finite(tensors: Mapping[str, int]) -> str:
    """Infinities and NaN in the result."""
    values, first = sum(tensors.values()), ", ".join(list(tensors)[:3])
    return f"{values:,} values are infinite or not a number, in {first}. bfloat16 has more room than float16."


# Failures ----------------------------------------------------------------------------------

DETAILS = "Details"
EXCEPTIONS: dict[type[BaseException], tuple[str, str]] = {
    MemoryError: ("The machine ran out of memory.", "Close other programs, or merge fewer models at once."),
    PermissionError: ("A file may not be read or written.", "Check the rights of the folder."),
    FileNotFoundError: ("A file is gone.", "Check that the folder is still there, then try again."),
    OSError: ("The disk or a file did not answer as it should.", "Check the disk, then try again."),
}
UNEXPECTED = ("Something in Mixdesk itself went wrong.", "Try again; if it happens again, report the details below.")

"""Tokenizers, chat templates and licences of several models, compared in plain words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from merger.checkpoints.base import Checkpoint
from merger.errors import Problem
from merger.report.facts import ModelFacts, read_json_file
from merger.tokenizer import TOKENIZER, has_tokenizer, same_tokenizer


def companion_findings(checkpoints: Sequence[Checkpoint], facts: Sequence[ModelFacts]) -> list[Problem]:
    """What differs between the first model and the others beside the weights."""
    return [*_tokenizers(checkpoints, facts), *_templates(checkpoints, facts), *_licences(facts)]


def _tokenizers(checkpoints: Sequence[Checkpoint], facts: Sequence[ModelFacts]) -> list[Problem]:
    owners = [place for place, checkpoint in enumerate(checkpoints) if has_tokenizer(checkpoint.files)]
    without = [facts[place].name for place in range(len(checkpoints)) if place not in owners]
    problems = []
    if owners and without:
        message = f"{_joined(without)} {'has' if len(without) == 1 else 'have'} no tokenizer files."
        problems.append(Problem(message, hint="The result gets those of the base or the first model.", level="note"))
    if not owners:
        return problems
    first = owners[0]
    differing = [
        place for place in owners[1:] if not same_tokenizer(checkpoints[first].files, checkpoints[place].files)
    ]
    if differing:
        sizes = ", ".join(_with_size(checkpoints[place], facts[place]) for place in [first, *differing])
        message = f"The tokenizers differ: {sizes}."
        hint = "Rows of one token may then belong to another; 'tokenizer: {source: union}' matches them by token."
        problems.append(Problem(message, hint=hint, level="warning"))
    return problems


def _with_size(checkpoint: Checkpoint, facts: ModelFacts) -> str:
    size = token_count(checkpoint)
    return facts.name if size is None else f"{facts.name} has {size} tokens"


def token_count(checkpoint: Checkpoint) -> int | None:
    """How many tokens ``tokenizer.json`` defines, None where it does not say."""
    content = read_json_file(checkpoint, TOKENIZER)
    model = content.get("model") if isinstance(content, Mapping) else None
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(content, Mapping) or not isinstance(vocabulary, (Mapping, list)):
        return None
    added = content.get("added_tokens") or []
    known = set(vocabulary) if isinstance(vocabulary, Mapping) else {str(entry[0]) for entry in vocabulary if entry}
    return len(known | {str(token.get("content")) for token in added if isinstance(token, Mapping)})


def _templates(checkpoints: Sequence[Checkpoint], facts: Sequence[ModelFacts]) -> list[Problem]:
    templates = {facts[place].name: chat_template(checkpoint) for place, checkpoint in enumerate(checkpoints)}
    if len(set(templates.values())) < 2:
        return []
    without = [name for name, template in templates.items() if template is None]
    message = (
        f"The chat templates differ ({_joined(without)} without one)." if without else "The chat templates differ."
    )
    return [Problem(message, hint="The result gets that of the base or the first model.", level="note")]


def chat_template(checkpoint: Checkpoint) -> str | None:
    """The model's chat template, from its own file or from ``tokenizer_config.json``."""
    file = checkpoint.files.get("chat_template.jinja")
    if file is not None:
        return file.read().decode("utf-8", "replace").strip()
    config = read_json_file(checkpoint, "tokenizer_config.json")
    template = config.get("chat_template") if isinstance(config, Mapping) else None
    if isinstance(template, str):
        return template.strip()
    return None if template is None else json.dumps(template, sort_keys=True)


def _licences(facts: Sequence[ModelFacts]) -> list[Problem]:
    named = {model.name: model.licence for model in facts if model.licence}
    if len(set(named.values())) < 2:
        return []
    shown = "; ".join(f"{name}: {licence}" for name, licence in named.items())
    return [Problem(f"The licences differ: {shown}.", hint="The result has to respect all of them.", level="note")]


def _joined(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"

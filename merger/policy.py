"""What visitors may do: one value that every part of the engine asks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from merger.errors import Problem, UserError
from merger.types import ModelReference

GB = 1_000_000_000
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class Policy:
    """Limits of one installation.  None means no limit.

    Attributes:
        local_paths: whether models may be read from any folder of this machine.
        local_roots: folders whose content may be read even when ``local_paths`` is false.
        pickle: whether weight files in pickle format are opened.
        plugins: whether files with merge methods may be loaded.
        max_models: models in one recipe, the base included.
        max_output_bytes: size of one merged model.
        max_scratch_bytes: disk for downloads and results together.
        max_tensors: tensors of one model.
        endpoint: address of the Hub; None leaves the choice to the Hub client.
    """

    local_paths: bool = True
    local_roots: tuple[str, ...] = ()
    pickle: bool = False
    plugins: bool = True
    max_models: int | None = None
    max_output_bytes: int | None = None
    max_scratch_bytes: int | None = None
    max_tensors: int | None = None
    endpoint: str | None = None

    @classmethod
    def default(cls) -> Policy:
        """For people on their own machine."""
        return cls()

    @classmethod
    def hosted(cls, local_roots: Iterable[str | os.PathLike[str]] = ()) -> Policy:
        """For a public page such as a Space: visitors see nothing of the machine but ``local_roots``."""
        return cls(
            local_paths=False,
            local_roots=tuple(os.path.realpath(root) for root in local_roots),
            plugins=False,
            max_models=8,
            max_output_bytes=20 * GB,
            max_scratch_bytes=40 * GB,
            max_tensors=50_000,
        )

    def allows(self, reference: ModelReference) -> bool:
        """Whether the model, and its adapter, may be opened."""
        if reference.lora is not None and not self.allows(reference.lora):
            return False
        return self.local_paths or self._is_inside_roots(reference.path) or _is_on_hub(reference.path)

    def model_problems(self, models: Sequence[ModelReference]) -> list[Problem]:
        """What stands against a recipe with these models."""
        problems = [
            Problem(
                f"'{model}' is a place on this machine, which is not open here.",
                hint="Run Mixdesk on your own machine to merge folders of yours.",
            )
            for model in models
            if not self.allows(model)
        ]
        if self.max_models is not None and len(models) > self.max_models:
            message = f"The recipe names {len(models)} models; here at most {self.max_models} are merged at once."
            problems.append(Problem(message, hint="Leave some out, or run it on your own machine."))
        return problems

    def size_problems(self, tensors: int, output_bytes: int) -> list[Problem]:
        """What stands against a result of this size."""
        hint = "Merge it on your own machine."
        problems = []
        if self.max_tensors is not None and tensors > self.max_tensors:
            message = f"The result has {tensors:,} tensors; here at most {self.max_tensors:,} are merged."
            problems.append(Problem(message, hint=hint))
        if self.max_output_bytes is not None and output_bytes > self.max_output_bytes:
            size, limit = f"{output_bytes / GB:.1f} GB", f"{self.max_output_bytes / GB:.0f} GB"
            problems.append(Problem(f"The result has {size}; here at most {limit} are written.", hint=hint))
        return problems

    def require(self, models: Sequence[ModelReference]) -> None:
        """Insist that models may be opened here.

        Raises:
            UserError: with everything that stands against it.
        """
        problems = self.model_problems(models)
        if problems:
            raise UserError(problems)

    def _is_inside_roots(self, path: str) -> bool:
        real = Path(os.path.realpath(os.path.expanduser(path)))
        return any(real.is_relative_to(os.path.realpath(root)) for root in self.local_roots)


def _is_on_hub(path: str) -> bool:
    """Whether nothing on this machine answers to the name and it has the form of a Hub id."""
    return bool(HUB_NAME.fullmatch(path)) and ".." not in path and not os.path.lexists(path)

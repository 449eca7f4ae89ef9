"""Mixdesk's engine: read, preview, merge and write model weights.

Names are resolved when first used, so that importing `merger` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from merger.api import describe_methods as describe_methods
    from merger.api import inspect as inspect
    from merger.api import load_plugin as load_plugin
    from merger.api import load_recipe as load_recipe
    from merger.api import make_plan as make_plan
    from merger.api import merge as merge
    from merger.api import merge_in_memory as merge_in_memory
    from merger.api import preview as preview
    from merger.api import take_sample as take_sample
    from merger.errors import Cancelled as Cancelled
    from merger.errors import CheckpointError as CheckpointError
    from merger.errors import InputChangedError as InputChangedError
    from merger.errors import MergerError as MergerError
    from merger.errors import MethodError as MethodError
    from merger.errors import NonFiniteError as NonFiniteError
    from merger.errors import OutputError as OutputError
    from merger.errors import PlanError as PlanError
    from merger.errors import Problem as Problem
    from merger.errors import RecipeError as RecipeError
    from merger.errors import UserError as UserError
    from merger.events import Event as Event
    from merger.events import Merged as Merged
    from merger.events import Planned as Planned
    from merger.events import RecipeBegun as RecipeBegun
    from merger.events import ShardWritten as ShardWritten
    from merger.events import TensorMerged as TensorMerged
    from merger.events import Verified as Verified
    from merger.events import Working as Working
    from merger.graph import MergeTensorInput as MergeTensorInput
    from merger.graph import Task as Task
    from merger.jobs import Job as Job
    from merger.jobs import JobNotFound as JobNotFound
    from merger.jobs import JobStore as JobStore
    from merger.jobs import OutputFile as OutputFile
    from merger.jobs import new_owner as new_owner
    from merger.methods.base import MergeMethod as MergeMethod
    from merger.methods.base import MethodFacts as MethodFacts
    from merger.methods.define import Between as Between
    from merger.methods.define import merge_method as merge_method
    from merger.plan import OutputTensor as OutputTensor
    from merger.plan import Plan as Plan
    from merger.policy import Policy as Policy
    from merger.recipe import ModelEntry as ModelEntry
    from merger.recipe import Recipe as Recipe
    from merger.recipe import RunOptions as RunOptions
    from merger.recipe import Slice as Slice
    from merger.report import Report as Report
    from merger.series import load_recipes as load_recipes
    from merger.series import merge_recipes as merge_recipes
    from merger.series import plan_recipes as plan_recipes
    from merger.state_dicts import merge_state_dicts as merge_state_dicts
    from merger.statistics.preview import Preview as Preview
    from merger.statistics.sampling import Sample as Sample
    from merger.types import Block as Block
    from merger.types import ConfigParameterDef as ConfigParameterDef
    from merger.types import Fold as Fold
    from merger.types import ImmutableMap as ImmutableMap
    from merger.types import ModelReference as ModelReference
    from merger.types import Noise as Noise
    from merger.types import TensorContext as TensorContext
    from merger.types import TensorSpec as TensorSpec
    from merger.types import WeightInfo as WeightInfo

_HOME = {
    "merger.api": "describe_methods inspect load_plugin load_recipe make_plan merge merge_in_memory preview "
    "take_sample",
    "merger.errors": "Cancelled CheckpointError InputChangedError MergerError MethodError NonFiniteError OutputError "
    "PlanError Problem RecipeError UserError",
    "merger.events": "Event Merged Planned RecipeBegun ShardWritten TensorMerged Verified Working",
    "merger.graph": "MergeTensorInput Task",
    "merger.jobs": "Job JobNotFound JobStore OutputFile new_owner",
    "merger.methods.base": "MergeMethod MethodFacts",
    "merger.methods.define": "Between merge_method",
    "merger.plan": "OutputTensor Plan",
    "merger.policy": "Policy",
    "merger.recipe": "ModelEntry Recipe RunOptions Slice",
    "merger.report": "Report",
    "merger.series": "load_recipes merge_recipes plan_recipes",
    "merger.state_dicts": "merge_state_dicts",
    "merger.statistics.sampling": "Sample",
    "merger.statistics.preview": "Preview",
    "merger.types": "Block ConfigParameterDef Fold ImmutableMap ModelReference Noise TensorContext TensorSpec "
    "WeightInfo",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name == "methods":  # a package that can be called
        return import_module("merger.methods")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'merger' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

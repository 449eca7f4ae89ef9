"""Where a merge runs: small ones in a thread of this process, all others in a child."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from merger.jobs.folder import JobFolder
from merger.jobs.records import Job
from merger.jobs.runs import ChildRun, Run, ThreadRun
from merger.policy import Policy
from merger.recipe import RunOptions

_STORED = ("device", "workers", "shard_size", "strict")


@dataclass(frozen=True)
class Launcher:
    """Makes the run for a job.

    Attributes:
        command: the program for child processes.
        small_bytes: merges that read and write fewer bytes than this stay in this process.
        grace: seconds between asking a child to stop and killing it.
        policy: what may be merged here.
    """

    command: Sequence[str]
    small_bytes: int
    grace: float
    policy: Policy

    def __call__(self, job: Job, folder: JobFolder) -> Run:
        """Choose a run; a partial output of an earlier one is continued.

        Raises:
            MergerError: the recipe or its models do not work; with all problems.
        """
        options = RunOptions(**job.options, resume=folder.partial.exists())
        must_plan = self.small_bytes or self.policy != Policy()
        if must_plan and self._bytes_to_move(folder, options) < self.small_bytes:
            return ThreadRun(folder, options)
        return ChildRun(self.command, folder, options, self.grace)

    def _bytes_to_move(self, folder: JobFolder, options: RunOptions) -> int:
        """What a merge reads and writes; planning it first also holds it to the policy."""
        from merger import api  # heavy: it brings torch

        with contextlib.closing(api.make_plan(folder.recipe, options, folder.output, policy=self.policy)) as plan:
            plan.require()
            return plan.bytes_in + plan.bytes_out


def storable(options: RunOptions) -> Mapping[str, Any]:
    """The run options that a job keeps."""
    return {name: getattr(options, name) for name in _STORED}

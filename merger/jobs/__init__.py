"""Merges that run in the background and outlive the page that started them."""

from __future__ import annotations

from merger.jobs.access import new_owner
from merger.jobs.outputs import OutputFile
from merger.jobs.records import ACTIVE, RESUMABLE, Job, JobNotFound, Progress, State
from merger.jobs.store import JobStore

__all__ = ["ACTIVE", "RESUMABLE", "Job", "JobNotFound", "JobStore", "OutputFile", "Progress", "State", "new_owner"]

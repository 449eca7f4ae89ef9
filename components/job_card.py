"""A merge as the page tells it: what it will make, how far it is, and what came out."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from components import downloads, problems, text
from components.numbers import Skills
from merger import Job, JobStore, Problem

if TYPE_CHECKING:
    from merger import MethodFacts, Plan

CODE_BLOCK = re.compile(r"```python\n(.*?)\n```", re.DOTALL)


def forecast(plan: Plan, facts: MethodFacts) -> str:
    """Sizes of a merge, and everything its plan found."""
    merged = sum(output.action == "merge" for output in plan.outputs)
    numbers = (
        (text.FORECAST_METHOD, facts.pretty_name),
        (text.FORECAST_TENSORS, f"{merged:,}"),
        (text.FORECAST_READ, text.size(plan.bytes_in)),
        (text.FORECAST_WRITE, text.size(plan.bytes_out)),
        (text.FORECAST_MEMORY, text.size(plan.memory)),
    )
    cells = "".join(f"<div><dt>{label}</dt><dd>{html.escape(value)}</dd></div>" for label, value in numbers)
    errors = problems.alert([problems.of_problem(problem, text.CANNOT_MERGE) for problem in plan.errors])
    others = [problem for problem in plan.problems if problem.level != "error"]
    return errors or f"<dl class='facts'>{cells}</dl>{problems.listed(others)}"


def progress(job: Job, ahead: int) -> str:
    """Card with a progress bar; screen readers hear every tenth."""
    percent = 100 if job.state == "verified" else int(100 * job.progress.fraction)
    title = text.JOB_STATES[job.state].format(name=job.name)
    told = text.announced(title, percent // 10 * 10) if job.is_active else title
    return (
        f"<section class='job-card {job.state}' aria-label='{text.JOB_LABEL}'>"
        f"<div class='job-head'><strong>{html.escape(title)}</strong><span>{percent} %</span></div>"
        f"<div class='bar' role='progressbar' aria-label='{text.JOB_LABEL}' aria-valuemin='0' aria-valuemax='100'"
        f" aria-valuenow='{percent}'><div style='width:{percent}%'></div></div>"
        f"<p class='job-now'>{html.escape(_now(job, ahead))}</p>"
        f"<p class='sr-only' aria-live='polite'>{html.escape(told)}</p></section>{_failure(job)}"
    )


def _now(job: Job, ahead: int) -> str:
    done = job.progress
    if job.state == "queued":
        return text.QUEUED_BEHIND.format(count=ahead) if ahead else text.QUEUED
    if job.state == "verified":
        return text.VERIFIED_IN.format(time=text.duration((job.finished or 0) - (job.started or 0)))
    if not job.is_active:
        return "" if _failure(job) else text.JOB_HINTS.get(job.state, "")
    if done.phase != "merging":
        return text.PHASES[done.phase]
    where = [text.TENSOR_OF.format(done=min(done.done + 1, done.total), total=done.total)]
    where += [text.IN_LAYER.format(layer=done.layer)] if done.layer is not None else []
    where += [done.role] if done.role else []
    where += [text.speed(done.bytes_per_second)] if done.bytes_per_second else []
    where += [text.LEFT.format(time=text.duration(done.seconds_left))] if done.seconds_left is not None else []
    return " · ".join(where)


def _failure(job: Job) -> str:
    if job.state not in text.JOB_STOPPED:
        return ""
    return problems.alert([problems.of_problem(problem, text.JOB_STOPPED[job.state]) for problem in job.problems])


def result(store: JobStore, job: Job, owner: str | None, skills: Skills | None) -> str:
    """What came out: facts, skills of a demo merge, downloads, and how to use it."""
    return (
        f"<section class='result-card' aria-label='{text.RESULT_LABEL}'><h3>{text.RESULT_TITLE}</h3>"
        f"{_verified(job)}{'' if skills is None else _skill_table(skills)}"
        f"{_downloads(store, job, owner)}{_usage(store, job)}</section>"
    )


def texts(store: JobStore, job: Job) -> tuple[str, str]:
    """The model card and the recipe that lie beside the weights."""
    folder = store.output_path(job.id)
    card = folder / "README.md"
    return card.read_text(encoding="utf-8") if card.exists() else "", job.recipe


def _verified(job: Job) -> str:
    told = dict(job.result or {})
    checked = text.verified(told.get("files", 0), told.get("tensors", 0), told.get("bytes", 0))
    bad = told.get("non_finite") or {}
    warnings = [Problem(text.non_finite(bad), level="warning")] if bad else []
    return problems.listed(warnings, [checked] if bad else [checked, text.ALL_FINITE])


def _skill_table(skills: Skills) -> str:
    head = "".join(f"<th scope='col'>{html.escape(view)}</th>" for view in (*skills.views, text.MEAN))
    rows = "".join(
        f"<tr{' class=merged' if name == text.MERGE else ''}><th scope='row'>{html.escape(name)}</th>"
        + "".join(f"<td>{text.percent(value)}</td>" for value in (*row, row.mean()))
        + "</tr>"
        for name, row in zip(skills.models, skills.accuracy, strict=True)
    )
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='{text.SKILL_CAPTION}'><table class='skills'>"
        f"<caption>{text.SKILL_CAPTION}</caption><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody>"
        "</table></div>"
    )


def _downloads(store: JobStore, job: Job, owner: str | None) -> str:
    if owner is None:
        return f"<p class='hint'>{text.NOT_YOURS}</p>"
    files = store.files(job.id)
    total = text.size(sum(size for _, size in files))
    items = "".join(
        f"<li><a href='{html.escape(_link(store, job, owner, name))}' download>{html.escape(name)}</a>"
        f"<span>{text.size(size)}</span></li>"
        for name, size in files
    )
    return (
        f"<p><a class='download' href='{html.escape(_link(store, job, owner, None))}' download>"
        f"{text.DOWNLOAD_ALL.format(size=total)}</a></p>"
        f"<details class='files'><summary>{text.SINGLE_FILES.format(count=len(files))}</summary>"
        f"<ul>{items}</ul></details>"
    )


def _link(store: JobStore, job: Job, owner: str, name: str | None) -> str:
    """Relative to the page, so that it holds behind any root path."""
    return downloads.link(store, job, owner, name, root_path=".")


def _usage(store: JobStore, job: Job) -> str:
    card, _ = texts(store, job)
    found = CODE_BLOCK.search(card)
    if found is None:
        return ""
    code = found[1].replace("path/to/this/folder", job.file_name)
    return f"<h4>{text.USAGE}</h4><pre class='usage' tabindex='0'><code>{html.escape(code)}</code></pre>"

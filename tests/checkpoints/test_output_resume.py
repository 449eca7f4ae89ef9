"""A merge that was killed at any moment goes on, and gives the very same bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from merger.checkpoints.layout import ShardLayout, plan_shards
from merger.checkpoints.target import repair
from merger.checkpoints.writer import OutputFolder
from merger.errors import Cancelled, OutputError
from tests.checkpoints.making import spec

REPOSITORY = Path(__file__).resolve().parents[2]
FINGERPRINT = {"recipe": "merge_method: linear", "inputs": {"base": "11", "tuned": "22"}}
STEP = 100
NAMES = ["a", "b", "c", "d"]
SPANS = [(name, start) for name in NAMES for start in range(0, 1000, STEP)]


def layouts(size: int = 250) -> list[ShardLayout]:
    return plan_shards([spec(name, shape=(size,)) for name in NAMES], 2000, {"format": "pt"})


def piece(name: str, start: int) -> bytes:
    return bytes((ord(name) * 7 + start + place) % 251 for place in range(STEP))


def write(folder: OutputFolder, spans: Sequence[tuple[str, int]]) -> None:
    for name, start in spans:
        folder.write(name, start, piece(name, start), non_finite=start == 300)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def unfinished(folder: OutputFolder) -> list[tuple[str, int]]:
    done = {(name, start) for name, spans in folder.finished.items() for start, _ in spans}
    return [span for span in SPANS if span not in done]


def finish(folder: OutputFolder) -> None:
    with folder:
        write(folder, unfinished(folder))
        folder.add_file("config.json", b"{}")
        assert folder.verify() == dict.fromkeys(NAMES, 1)
        folder.commit()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    target = tmp_path_factory.mktemp("expected") / "out"
    finish(OutputFolder.create(target, layouts(), FINGERPRINT))
    return contents(target)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def partial(target: Path) -> Path:
    """What a merge leaves that was killed after 25 of its 40 spans."""
    with OutputFolder.create(target, layouts(), FINGERPRINT) as folder:
        write(folder, SPANS[:25])
        folder.add_file("stale.json", b"an earlier idea")
    return folder.path


def journal_of(partial: Path) -> Path:
    return partial / ".mixdesk-journal"


def resumed(target: Path, fingerprint: dict[str, object] = FINGERPRINT, **options: object) -> OutputFolder:
    return OutputFolder.create(target, layouts(), fingerprint, resume=True, **options)  # type: ignore[arg-type]


def test_only_what_is_missing_is_written_again(partial, target, expected):
    folder = resumed(target)
    assert unfinished(folder) == SPANS[25:]
    finish(folder)
    assert contents(target) == expected
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_resuming_nothing_begins_afresh(target, expected):
    folder = resumed(target)
    assert folder.finished == {}
    finish(folder)
    assert contents(target) == expected


def test_without_resume_everything_is_written_again(partial, target, expected):
    folder = OutputFolder.create(target, layouts(), FINGERPRINT)
    assert folder.finished == {}
    finish(folder)
    assert contents(target) == expected


def test_a_torn_last_line_is_ignored_and_the_journal_goes_on_behind_it(partial, target, expected):
    with open(journal_of(partial), "r+b") as journal:
        journal.truncate(journal_of(partial).stat().st_size - 5)
    with resumed(target) as folder:
        assert unfinished(folder) == SPANS[24:]
        write(folder, SPANS[24:30])
    folder = resumed(target)
    assert unfinished(folder) == SPANS[30:]
    finish(folder)
    assert contents(target) == expected


@pytest.mark.parametrize(
    "damage",
    [
        "not json",
        '["a",0]',
        '["ghost",0,100,1,0]',
        '["a",-100,100,1,0]',
        '["a",900,1100,1,0]',
        '["a",5,5,0,0]',
        "{}",
        "\x00",
    ],
)
def test_lines_that_make_no_sense_only_cost_their_span(partial, target, expected, damage):
    lines = journal_of(partial).read_text().splitlines()
    lines[3] = damage
    journal_of(partial).write_text("\n".join(lines) + "\n")
    folder = resumed(target)
    assert unfinished(folder) == [SPANS[2], *SPANS[25:]]
    finish(folder)
    assert contents(target) == expected


def test_damaged_bytes_are_written_again(partial, target, expected):
    tensor = next(s for layout in layouts() for s in layout.tensors if s.name == "b")
    with open(partial / tensor.shard, "r+b") as file:
        file.seek(tensor.start + 350)
        file.write(b"\xff\xff")
    folder = resumed(target)
    assert unfinished(folder) == [("b", 300), *SPANS[25:]]
    finish(folder)
    assert contents(target) == expected


@pytest.mark.parametrize("damage", ["deleted", "cut", "emptied", "header", "longer"])
def test_damaged_files_are_made_again(partial, target, expected, damage):
    path = partial / layouts()[0].file
    if damage == "deleted":
        path.unlink()
    elif damage in ("cut", "emptied", "longer"):
        os.truncate(path, {"cut": 700, "emptied": 0, "longer": 50_000}[damage])
    else:
        path.write_bytes(b"\xff" * 20 + path.read_bytes()[20:])
    folder = resumed(target)
    finish(folder)
    assert contents(target) == expected


def test_a_journal_without_its_first_line_begins_afresh(partial, target, expected):
    journal_of(partial).write_bytes(b"")
    folder = resumed(target)
    assert folder.finished == {}
    finish(folder)
    assert contents(target) == expected


def test_what_was_written_twice_counts_in_its_last_form(partial, target):
    with resumed(target) as folder:
        folder.write("a", 0, b"\x01" * STEP)
    with resumed(target) as folder:
        assert ("a", 0) not in unfinished(folder)


def test_stale_side_files_of_the_earlier_run_are_gone(partial, target, expected):
    assert (partial / "stale.json").exists()
    with resumed(target):
        assert not (partial / "stale.json").exists()


CHANGES = {
    "the recipe differs": {"recipe": "merge_method: slerp", "inputs": FINGERPRINT["inputs"]},
    "the input model tuned differs": {"recipe": FINGERPRINT["recipe"], "inputs": {"base": "11", "tuned": "33"}},
    "the input model third differs": FINGERPRINT | {"inputs": {"base": "11", "tuned": "22", "third": "33"}},
    "the input model base and the recipe differ": {"recipe": "x", "inputs": {"base": "0", "tuned": "22"}},
}


@pytest.mark.parametrize("words", CHANGES)
def test_something_else_is_not_resumed_and_what_differs_is_said(partial, target, expected, words):
    with pytest.raises(OutputError, match=words):
        resumed(target, CHANGES[words])
    finish(resumed(target))
    assert contents(target) == expected


def test_another_layout_is_not_resumed(partial, target):
    with pytest.raises(OutputError, match="the output's tensors or shard size differs"):
        OutputFolder.create(target, layouts(249), FINGERPRINT, resume=True)
    assert len(unfinished(resumed(target))) == 15


def test_checking_old_work_can_be_cancelled_and_loses_nothing(partial, target):
    with pytest.raises(Cancelled):
        resumed(target, stopped=lambda: True)
    with resumed(target) as folder:
        assert unfinished(folder) == SPANS[25:]


def test_a_killed_process_leaves_all_spans_it_reported(target, expected):
    script = textwrap.dedent(
        """
        import sys, time
        from tests.checkpoints.test_output_resume import *
        folder = OutputFolder.create(sys.argv[1], layouts(), FINGERPRINT)
        for span in SPANS[:-1]:
            write(folder, [span])
            print(*span, flush=True)
        time.sleep(60)
        """
    )
    command = [sys.executable, "-c", script, str(target)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reported = [process.stdout.readline().split() for _ in range(17)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    folder = resumed(target)
    assert not {(name, int(start)) for name, start in reported} & set(unfinished(folder))
    finish(folder)
    assert contents(target) == expected


class Killed(BaseException):
    """Stands for a kill: nothing may run after it but what the operating system does."""


def kill_before_step(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the process die before it renames or deletes for the ``number``-th time."""
    steps = iter(range(1000))
    for module, name in ((os, "rename"), (os, "unlink"), (os, "rmdir")):
        original = getattr(module, name)

        def step(*arguments: object, original=original, **options: object) -> object:
            if next(steps) >= number:
                raise Killed
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, step)


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("before", ["nothing", "old folder"])
def test_killed_while_taking_the_place_of_the_target(target, expected, monkeypatch, before, step):
    if before == "old folder":
        (target / "sub").mkdir(parents=True)
        (target / "sub" / "old.bin").write_bytes(b"old")
        (target / "model.safetensors").write_bytes(b"old")
    old = contents(target) if target.exists() else {}
    folder = OutputFolder.create(target, layouts(), FINGERPRINT, overwrite=True)
    with monkeypatch.context() as killing:
        kill_before_step(killing, step)
        try:
            finish(folder)
        except Killed:
            killed = True
        else:
            killed = False
    assert killed or step > (1 if before == "nothing" else 5)
    repair(target)
    repair(target)
    found = contents(target) if target.exists() else {}
    assert found in (old, expected)
    if found == expected:
        assert [path.name for path in target.parent.iterdir()] == ["out"]
    else:
        folder = resumed(target, overwrite=True)
        assert unfinished(folder) == []
        finish(folder)
        assert contents(target) == expected
        assert [path.name for path in target.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("step", range(8))
def test_killed_while_discarding(target, expected, monkeypatch, step):
    folder = OutputFolder.create(target, layouts(), FINGERPRINT)
    write(folder, SPANS[:25])
    folder.add_file("1_Pooling/config.json", b"{}")
    with folder, monkeypatch.context() as killing:
        kill_before_step(killing, step)
        try:
            folder.discard()
        except Killed:
            folder.abandon()
    finish(OutputFolder.create(target, layouts(), FINGERPRINT))
    assert contents(target) == expected
    assert shutil.rmtree(target) is None and list(target.parent.iterdir()) == []


def test_the_journal_is_plain_text_with_one_line_per_span(partial):
    first, *lines = journal_of(partial).read_text().splitlines()
    assert json.loads(first)["fingerprint"] == FINGERPRINT
    assert [json.loads(line)[:3] for line in lines] == [[name, start, start + STEP] for name, start in SPANS[:25]]

"""Records of commands: how they are made, and that those said to be equal everywhere are so here."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.book import counts, life, recording
from scripts.book.cuda import RECORD
from scripts.book.folders import Folders
from scripts.book.problems import ChapterError
from scripts.book.records import load_records, record, record_file, save_records, without_machine
from scripts.book.segments import Fence, split_page
from scripts.book.shown import Shown, commands_of
from scripts.chart import bar_chart
from scripts.course import ROOT
from scripts.hardware.quiet import ACCEPT_BUSY, Others
from tests.book.small_books import DAY, faults_of, folders_in, keep_records, page_of, record_of


def stable_commands() -> list[tuple[str, Shown]]:
    """The commands of `console,stable` fences, with the page of each."""
    found = []
    for file in sorted(Folders().src.rglob("*.md")):
        for segment in split_page(file.read_text(encoding="utf-8")):
            if isinstance(segment, Fence) and segment.kind == "console" and "stable" in segment.options:
                page = file.relative_to(Folders().src).as_posix()
                found += [(page, shown) for shown in commands_of(segment)]
    return found


def test_stable_output_is_what_the_command_prints_now() -> None:
    for page, shown in stable_commands():
        kept = load_records(record_file(Folders().records, Path(page)))[shown.command]
        now = record(shown.command)
        assert (now.output, now.exit_code) == (kept.output, kept.exit_code), f"{page}: {shown.command}"


def test_every_record_is_shown_and_names_no_folder_of_a_machine() -> None:
    records = Folders().records
    # Those of machines, of GPU kernels and of a request's way have tests of their own.
    others = {
        *records.glob("hardware/*.json"),
        *(records / name for name in (RECORD, counts.RECORD, life.RECORD)),
    }
    for file in sorted({*records.rglob("*.json")} - others):
        page = Folders().src / file.relative_to(records).with_suffix(".md")
        shown = {each.command for each in recording.all_commands(page.read_text(encoding="utf-8"))}
        kept = load_records(file)
        assert kept.keys() <= shown, file
        for each in kept.values():
            assert without_machine(each.output) == each.output
            assert "\x1b" not in each.output


def test_a_command_is_recorded_with_its_exit_code_and_machine() -> None:
    made = record("TINY_LLM_KERNELS=off pdm run demo --model nowhere")
    assert made.exit_code == 2
    assert made.output.startswith("error: no checkpoint is called 'nowhere'")
    assert "cores" in made.machine
    assert "MLX" in made.versions


def test_folders_of_this_machine_do_not_get_into_a_record() -> None:
    assert without_machine(f"{ROOT}/tests/a.py  \nin {ROOT}\n") == "tests/a.py\nin ."
    with pytest.raises(ChapterError, match="a folder of this machine, /home/somebody/x"):
        without_machine("see /home/somebody/x")


def test_only_new_commands_are_run_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def fake(command: str) -> object:
        ran.append(command)
        return record_of(command, "new")

    monkeypatch.setattr(recording, "record", fake)
    monkeypatch.setenv(ACCEPT_BUSY, "1")
    folders = folders_in(tmp_path)
    (folders.src / "week-2").mkdir()
    (folders.src / DAY).write_text("```console\n$ pdm run doctor\n$ pdm run demo\n```\n", encoding="utf-8")
    file = record_file(folders.records, Path(DAY))
    save_records(file, [record_of("pdm run doctor", "old"), record_of("pdm run author states", "old")])
    assert recording.record_pages(folders, ["week-2/day-7"]) == []
    assert ran == ["pdm run demo"]
    assert {name: each.output for name, each in load_records(file).items()} == {
        "pdm run doctor": "old",
        "pdm run demo": "new",
    }
    recording.record_pages(folders, [], before="2026-11-22", matching="doc")
    recording.record_pages(folders, [], before="2026-11-21")  # the day of these records
    assert ran == ["pdm run demo", "pdm run doctor"]
    with pytest.raises(ValueError, match="there is no chapter 'week-9'"):
        recording.record_pages(folders, ["week-9"])


@pytest.mark.parametrize(
    ("share", "exit_code", "words"),
    [
        (0.5, 0, "the busiest clang with 90% of a core"),
        (0.0, 2, "ends with exit code 2, the old record stays: new"),
    ],
)
def test_a_busy_machine_or_a_failing_command_leaves_the_record_as_it_was(
    share: float, exit_code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "looked", lambda: Others(share, "clang", 0.9))
    monkeypatch.setattr(recording.Watch, "others", lambda watch: Others(0.0))
    monkeypatch.setattr(
        recording, "record", lambda command: replace(record_of(command, "new"), exit_code=exit_code)
    )
    monkeypatch.delenv(ACCEPT_BUSY, raising=False)
    folders = folders_in(tmp_path)
    (folders.src / "setup.md").write_text("```console\n$ pdm run doctor\n```\n", encoding="utf-8")
    file = record_file(folders.records, Path("setup.md"))
    save_records(file, [record_of("pdm run doctor", "old")])
    (problem,) = recording.record_pages(folders, ["setup"], before="9999")
    assert words in str(problem)
    assert load_records(file)["pdm run doctor"].output == "old"


def test_a_chart_is_drawn_above_its_record(tmp_path: Path) -> None:
    command, chart = "pdm run bench scheduler", bar_chart("Steps", {"time": {"one": [3.0, 4.0]}})
    folders = folders_in(tmp_path)
    keep_records(folders, replace(record_of(command, "a table"), chart=chart))
    text = f"```console,chart\n$ {command}\n```\n"
    rendered = page_of(tmp_path, text).rendered
    assert 0 < rendered.index("<title>Steps</title>") < rendered.index("a table")
    keep_records(folders, record_of(command, "a table"))
    assert faults_of(tmp_path, text)[0] == (2, f"`{command}` has a record without a chart: record it again")


def test_the_charts_of_the_readme_are_those_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders()
    shown = set(re.findall(r"book/charts/([\w-]+\.svg)", (ROOT / "README.md").read_text(encoding="utf-8")))
    kept = {file.name: file.read_text(encoding="utf-8") for file in folders.charts.iterdir()}
    assert shown == kept.keys()
    monkeypatch.setattr(Folders, "charts", tmp_path)
    for file in folders.src.rglob("*.md"):
        if ",chart=" in file.read_text(encoding="utf-8"):
            recording.write_page_charts(folders, file)
    assert {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()} == kept

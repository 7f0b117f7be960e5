"""Studies: their files, what is done again and what is not, and one report of all steps."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.artifacts import atomic_files
from common.artifacts.schema import Noise
from common.data.sources import DataRefused
from compare.cli.errors import FolderError
from compare.cli.interrupt import Interrupted
from compare.cli.wording import Detail
from compare.judgement.summary import summarize
from compare.reporting import comparison_report, comparison_tables
from compare.reporting.document import Section, findings_to_markdown
from compare.reporting.tables import Column, Table
from compare.results import store
from compare.running import launch
from compare.tools.papers import step_runner, study, study_steps
from compare.tools.papers.step_runner import FinishedStep, PassedValues, StepResult, StepsRecord, WorkflowStep
from compare.tools.papers.study_file import SCALES, Study
from tests.support import comparisons, trees
from tests.support.command_line import Ended, convtwins, convtwins_process
from tests.support.refusals import check_ended, refused
from tests.support.snapshots import Screens

STUDIES = sorted((launch.PROJECT_ROOT / "studies").glob("*.yaml"))
FILE = {"title": "A study", "spec": {"model": "simple_cnn"}, "scales": {"smoke": {"pretrain.repeats": 2}}}


class Steps:
    """Three steps that note when they are done, and do what they are told."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.passed: dict[str, PassedValues] = {}
        self.fault: dict[str, BaseException | int] = {}

    def step(self, name: str) -> WorkflowStep[Study]:
        def do(study: Study, folder: Path, passed: PassedValues) -> StepResult:
            self.done.append(name)
            self.passed[name] = passed
            fault = self.fault.get(name, 0)
            if isinstance(fault, BaseException):
                raise fault
            (folder / "drawn.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0"/></svg>')
            rows: list[dict[str, Any]] = [{"what": f"<b>{name}</b>", "number": 0.5}]
            grid = Table(f"of_{name}", "A table", (Column("what", "what"), Column("number", "number", 2)), rows)
            part = Section(
                name=name,
                title=f"Step {name}",
                findings=[("Said", [f"{name} <script>alert(1)</script>"])],
                tables=[grid],
                pictures=["drawn.svg"],
                conclusions=[f"{name} was done."],
            )
            best = {"left": {"optimizer.learning_rate": 0.5}} if name == "two" else {}
            return StepResult(part, PassedValues(best=best), fault)

        return WorkflowStep(name, f"do {name}", do)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Steps:
    """The steps of a study. The parameter names those that run every time."""
    made = Steps()
    every_time = getattr(request, "param", ())
    own = tuple(replace(made.step(name), runs_every_time=name in every_time) for name in ("one", "two", "three"))
    monkeypatch.setattr(study, "STEPS", own)  # the command has no others than its own, which train
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return trees.write(tmp_path, {"own.yaml": FILE}) / "own.yaml"


def studied(file: Path, *words: object) -> Ended:
    return convtwins("study", file, "--out", file.parent / "out", *words)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_of_the_project_is_a_good_one_at_every_scale(path: Path, scale: str) -> None:
    assert Study.read(path, scale, {}).base().model in ("simple_cnn", "mini_xception", "resnet18")


def test_there_is_a_study_for_each_of_the_three_data_sets() -> None:
    assert [path.stem for path in STUDIES] == ["cifar10", "plant-disease", "tomato"]


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"pretrain": {"repeat": 5}}, {"field": "pretrain.repeat", "received": 5, "fix": "pretrain.repeats"}),
        ({"pretrain": {"modes": "serial"}}, {"field": "pretrain.modes", "received": "'serial'", "fix": "['serial'"}),
        ({"tune": {"jobs": []}}, {"field": "tune.jobs"}),
        ({"spec": {"switches": "plain"}}, {"field": "switches", "names": ["usual", "best"]}),
        ({"pretrain": {"modes": ["seriel"]}}, {"fix": "serial"}),
        ({"spec": {"modle": "simple_cnn"}}, {"field": "modle"}),
        ({"spec": {"epochs": 3}}, {"field": "spec.epochs"}),
        ({"spec": {"data": {"image_size": 4}}}, {"field": "data.image_size", "names": ["simple_cnn"]}),
        ({"tune": {"space": {"optimizer.learning_rat": {"low": 0.1, "high": 0.2}}}}, {"names": ["optimizer.learning_rat"]}),
        (
            {"tune": {"space": {"data.normalization": {"choices": ["none", "dataset"]}}}},
            {"field": "tune.space.data.normalization"},
        ),
        ({"tune": {"space": {"model": {"choices": ["simple_cnn", "resnet18"]}}}}, {"field": "tune.space.model"}),
        ({"spec": {"best_epoch": {"keep": True}}}, {"field": "best_epoch.keep", "names": ["False"]}),
        ({"spec": {"profile_steps": 5}}, {"field": "profile_steps", "names": ["0"]}),
        ({"tune": {"jobs": [0]}}, {"field": "jobs"}),
        ({"pretrain": {"modes": ["serial", ""]}}, {"field": "pretrain.modes", "received": "''"}),
        ({"final": {"epochs": 0}}, {"field": "final.epochs"}),
        ({"scales": {"tiny": {}}}, {"field": "scales"}),
        ({"scales": {"smoke": {1: 2}}}, {"received": 1}),
        ({"scales": {"smoke": 3}}, {"field": "scales"}),
        ({"normalise": {"engines": ["numpy"]}}, {"field": "normalise.engines"}),
    ],
)
def test_a_wrong_field_is_named_with_its_file_before_anything_is_done(
    file: Path, steps: Steps, fields: dict[str, Any], parts: dict[str, Any]
) -> None:
    file.write_text(yaml.safe_dump(FILE | fields))
    check_ended(studied(file), **{**parts, "names": [file, *parts.get("names", [])]})
    assert steps.done == []


@pytest.mark.parametrize("steps", [("three",)], indirect=True)
def test_a_step_that_only_reads_the_others_is_done_each_time(file: Path, steps: Steps) -> None:
    steps.fault["one"] = 1
    assert studied(file).exit_code == 1
    steps.fault.clear()
    assert studied(file).exit_code == 0
    assert steps.done == ["one", "two", "three", "one", "three"]


def test_a_step_is_done_again_if_its_comparison_was_continued_alone(file: Path, steps: Steps) -> None:
    assert studied(file).exit_code == 0
    for name in ("1-one", "2-two"):  # as a copy of the folder has them: times tell nothing
        os.utime(file.parent / "out" / name / "step.json", (1.0, 1.0))
    assert studied(file).exit_code == 0
    assert steps.done == ["one", "two", "three"]
    (file.parent / "out" / "2-two" / "compare.json").write_text("{}", encoding="utf-8")
    assert studied(file).exit_code == 0
    assert steps.done == ["one", "two", "three", "two"]


def test_a_step_is_done_again_if_a_run_of_its_comparison_was_removed_or_made_again(file: Path, steps: Steps) -> None:
    folder = comparisons.stored_in(comparisons.repeated(1), file.parent / "out" / "2-two" / "deeper")
    (file.parent / "out" / "study.json").write_text('{"kind": "study"}')  # a study in which nothing was done yet
    assert studied(file).exit_code == studied(file).exit_code == 0
    assert steps.done == ["one", "two", "three"]
    plan = (folder / store.PLAN_FILE).read_bytes()
    result = min(folder.glob("runs/*/result.json"))
    for change in (lambda: result.write_text("{}", encoding="utf-8"), result.unlink):  # neither touches the plan
        change()
        steps.done.clear()
        assert studied(file).exit_code == studied(file).exit_code == 0
        assert steps.done == ["two"]
    assert (folder / store.PLAN_FILE).read_bytes() == plan


def test_advice_on_disturbed_runs_names_the_folder_of_their_step(tmp_path: Path) -> None:
    stored = comparisons.with_runs(comparisons.repeated(), repeats=[0], noise=Noise(cores_stolen=0.5))
    folder = tmp_path / "5-pretrain"
    part = study_steps.comparison_section(comparison_report.judge(stored), folder, name="pretrain", title="Pre-training")
    for text in (" ".join(part.conclusions), " ".join(each for _, sentences in part.findings for each in sentences)):
        assert f"run --resume {folder} --again disturbed" in text and "DIR" not in text


def test_a_study_that_names_no_data_says_first_what_it_takes(file: Path, steps: Steps) -> None:
    own = studied(file)
    assert own.stderr.startswith(f"{file} ") and "digits" in own.stderr.splitlines()[0]
    other = studied(file, "--data", "leaves", "--out", file.parent / "other")
    assert str(file) not in other.stderr
    assert "synthetic" in other.stdout and "synthetic" not in own.stdout


def test_a_scale_if_there_are_any_sets_fields_and_the_command_line_has_the_last_word(file: Path) -> None:
    given = [
        Study.read(file, scale, values) for scale, values in (("smoke", {}), ("quick", {}), ("smoke", {"pretrain.repeats": 4}))
    ]
    assert [each.pretrain.repeats for each in given] == [2, 1, 4]
    file.write_text(yaml.safe_dump({"title": "Mine"}))
    assert Study.read(file, "smoke", {}).title == "Mine"


def test_one_report_holds_every_step_and_nothing_of_it_runs(file: Path, steps: Steps) -> None:
    done = studied(file).succeeded()
    out = file.parent / "out"
    page, written = (out / "report.html").read_text(), (out / "report.md").read_text()
    for name in ("one", "two", "three"):
        assert f"{name} was done." in done.stdout and f"{name} was done." in written
        assert f'<h2 id="{name}">Step {name}</h2>' in page
        assert (out / "tables" / f"of_{name}.csv").exists()
    times = (out / "tables" / "steps.csv").read_text().splitlines()
    assert times[0] == '"step","seconds"' and [line.split(",")[0] for line in times[1:]] == [
        '"Step one"', '"Step two"', '"Step three"',
    ]  # fmt: skip
    assert "<script>alert(1)" not in page and "<b>one</b>" not in page
    assert page.count("<svg") == 3 and "default-src &#39;none&#39;" in page


def test_what_is_done_is_not_done_again_and_what_failed_is(file: Path, steps: Steps) -> None:
    steps.fault["two"] = 1
    assert studied(file).exit_code == 1
    assert steps.done == ["one", "two", "three"]
    steps.fault.clear()
    assert studied(file).exit_code == 0
    assert steps.done == ["one", "two", "three", "two"]
    (file.parent / "out" / "1-one" / step_runner.STEP_FILE).write_text("{")
    again = studied(file)
    assert steps.done[4:] == ["one"] and step_runner.STEP_FILE in again.stderr


def test_what_a_step_finds_is_passed_on_also_from_its_stored_record(file: Path, steps: Steps) -> None:
    steps.fault["three"] = Interrupted(2)
    assert studied(file).exit_code == 130
    steps.fault.clear()
    steps.passed.clear()
    assert studied(file).exit_code == 0
    assert steps.passed["three"].best == {"left": {"optimizer.learning_rate": 0.5}}


@pytest.mark.parametrize(
    ("fault", "code", "words"), [(Interrupted(15), 143, "1 of 3 steps"), (DataRefused("no such images"), 4, "no such images")]
)
def test_a_study_that_is_broken_off_keeps_a_report_of_what_was_done(
    file: Path, steps: Steps, fault: BaseException, code: int, words: str
) -> None:
    steps.fault["two"] = fault
    done = studied(file)
    assert (done.exit_code, steps.done) == (code, ["one", "two"]) and words in done.stderr
    assert "one was done." in (file.parent / "out" / "report.md").read_text()


def test_a_study_says_who_signed_its_steps_and_each_comparison_in_them(
    file: Path, steps: Steps, ssh_key: Path, tmp_path: Path
) -> None:
    out = file.parent / "out"
    compared = comparisons.stored_in(comparisons.repeated(1), out / "1-one" / "as_it_was")
    (out / "study.json").write_text('{"kind": "study"}')  # a study in which nothing was done yet
    signed = "3 results are as they were signed."
    assert signed in studied(file, "--sign", ssh_key).succeeded().stdout
    assert store.read(compared).signature is not None
    page = (out / "report.html").read_text()
    assert "Signed by ED25519 key SHA256:" in page and str(ssh_key) not in page
    assert signed in studied(file).stdout
    (out / "2-two" / step_runner.STEP_FILE).write_text("{")  # so that it is done again
    done = studied(file, "--json")
    assert done.exit_code == 1 and done.json["signature"]["differences"] == {"changed since": ["2-two/step.json"]}


@pytest.mark.parametrize("words", [("--set", "pretrain.repeats=3"), ("--set", "spec.seed=7"), ("--data", "digits")])
def test_another_study_does_not_go_on_in_the_folder_of_one(file: Path, steps: Steps, words: tuple[str, str]) -> None:
    studied(file)
    steps.done.clear()
    check_ended(studied(file, *words), names=[file.parent / "out", "another study"])
    assert steps.done == []


def test_a_folder_in_which_nothing_was_done_yet_is_free_for_another_study(file: Path, steps: Steps) -> None:
    steps.fault["one"] = DataRefused("no such images")
    assert studied(file, "--data", "tomatoes").exit_code == 4
    steps.fault.clear()
    assert studied(file, "--data", "digits").exit_code == 0


def test_other_code_does_not_go_on_in_the_folder_of_a_study(file: Path, steps: Steps) -> None:
    studied(file)
    stored = file.parent / "out" / "study.json"
    values = json.loads(stored.read_text()) | {"code_hash": "0" * 64}
    assert atomic_files.pop_valid_checksum(values) is False  # which removes it
    stored.write_text(atomic_files.with_checksum(json.dumps(values)))
    check_ended(studied(file), names=[file.parent / "out", "the code has been changed since"])


def test_a_folder_with_other_files_is_refused(file: Path, steps: Steps) -> None:
    out = trees.write(file.parent / "out", {"thesis.txt": "mine"})
    check_ended(studied(file), names=[out, "thesis.txt"])
    assert [path.name for path in out.iterdir() if path.name != ".lock"] == ["thesis.txt"]


def test_paths_of_a_step_are_those_of_its_folder_in_the_report() -> None:
    part = step_runner.under(Section(name="a", title="A", pictures=["plots/x.svg"], more=["report.md"]), "3-a")
    assert (part.pictures, part.more) == (["3-a/plots/x.svg"], ["3-a/report.md"])


@pytest.fixture
def small(tmp_path: Path) -> Study:
    """A study of few images."""
    folder = trees.write(tmp_path, {"small.yaml": FILE | {"spec": {"data": {"limit": 64}}}})
    return Study.read(folder / "small.yaml", "quick", {})


@pytest.mark.parametrize("name", ["normalise", "prove", "pretrain", "tune", "final"])
def test_data_that_changed_between_two_steps_are_refused_before_anything_is_trained(
    name: str, small: Study, tmp_path: Path
) -> None:
    (step,) = (step for step in study_steps.STEPS if step.name == name)
    with refused(FolderError, received="of other ima", names=["cleaned"]):
        step.run(small, tmp_path, PassedValues(data_hash="of other images"))


def test_data_that_changed_since_they_were_explored_are_refused(small: Study, tmp_path: Path) -> None:
    explore, clean, *_ = study_steps.STEPS
    passed = explore.run(small, tmp_path / "1", PassedValues()).passed
    assert clean.run(small, tmp_path / "2", passed).passed.data_hash
    with refused(FolderError, names=["explored", "--out"]):
        clean.run(small, tmp_path / "2", PassedValues(raw="of other images"))


def test_a_framework_that_could_not_be_tuned_is_named_in_the_conclusion(
    small: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = StepResult(Section(name="final", title="Final", conclusions=["Said."]))
    monkeypatch.setattr(study_steps, "final_training_step", lambda *_: trained)  # which takes minutes
    final, tuned = study_steps.STEPS[-1], {"optimizer.learning_rate": 0.1}
    untuned, rest = final.run(small, tmp_path, PassedValues(best={"tensorflow": tuned})).part.conclusions
    assert untuned.startswith("pytorch ") and "tensorflow" not in untuned and rest == "Said."
    assert final.run(small, tmp_path, PassedValues(best={"tensorflow": tuned, "pytorch": tuned})) == trained


@pytest.mark.slow
def test_a_whole_study_at_smoke_scale_in_both_frameworks(tmp_path: Path) -> None:
    """Its 3 minutes on two idle cores are for the docs to say; here it has its end."""
    words = ["study", "studies/tomato.yaml", "--scale", "smoke", "--out", tmp_path / "out", "--json"]
    made = convtwins_process(*words, timeout=3600).succeeded().json
    assert [part["name"] for part in made["parts"]] == [*(step.name for step in study_steps.STEPS), "times"]
    assert any("proved: in float64" in sentence for sentences in made["conclusions"].values() for sentence in sentences)
    again = convtwins_process(*words, timeout=3600).succeeded()
    assert again.json == made and "1 of" not in again.stderr


@pytest.mark.parametrize("kind", ["repeated", "profiled", "troubled"])
def test_a_step_stores_every_table_of_a_comparison_and_reads_it_back(kind: str) -> None:
    tables = comparison_tables.written_tables(summarize(getattr(comparisons, kind)()))
    done = step_runner.FinishedStep(
        part=Section(name="a", title="A", tables=tables), passed=PassedValues(), seconds=1.0, exit_code=0
    )
    read = step_runner.FinishedStep.model_validate_json(done.model_dump_json())
    assert [table.rows for table in read.part.tables] and read.part.tables[0].columns == tables[0].columns


def test_a_step_stores_which_sentences_stand_below_others() -> None:
    part = Section(name="a", title="A", findings=[("Same?", ["No.", Detail("The first layer differs.")])])
    done = step_runner.FinishedStep(part=part, passed=PassedValues(), seconds=1.0, exit_code=0)
    read = step_runner.FinishedStep.model_validate_json(done.model_dump_json())
    for section in (part, read.part):
        lines = findings_to_markdown(section.findings, level=2)
        assert lines[2:4] == ["- No.", "  - The first layer differs."]


STEPS = {
    "explore": ("Explore", []),
    "clean": ("Clean", ["1,258 images to train on, 359 to choose by, 180 to be judged by."]),
    "normalise": (
        "Mean and standard deviation",
        [
            "Mean / standard deviation in 0..1 at 32 x 32 pixels: red 0.304926 / 0.375618, green 0.304926 / 0.375618, blue "
            "0.304926 / 0.375618."
        ],
    ),
    "prove": ("Is it the same training?", ["Proved: both frameworks train the same."]),
    "pretrain": ("Pre-training", []),
    "tune": ("Tuning", []),
    "final": ("Final training and evaluation", []),
}
FIRST = {
    "pretrain": [
        "pytorch: 1.19 to 1.25 times as fast as tensorflow in serial",
        "no gain shown: pytorch data_parallel x2 0.98 to 1.02",
    ],
    "tune": ["pytorch: validation loss 0.1200, accuracy 0.9600, the best of 12 trials."],
    "final": ["pytorch: 172 of 180 right, 0.9556 (0.9148 to 0.9773)."],
}


@pytest.mark.parametrize("failed", [False, True])
def test_the_first_screen_says_what_each_step_found_and_which_failed(screens: Screens, file: Path, failed: bool) -> None:
    wanted = Study.read(file, "smoke", {"spec.cores": 2})
    record = StepsRecord(
        kind="study", created_at="2026-01-01T00:00:00+00:00", argv=["study"], settings={"scale": "smoke"}, code_hash="a",
        machine={"processor": "AMD EPYC 7B13"},
    )  # fmt: skip
    done = [
        FinishedStep(
            part=Section(
                name=name, title=title, conclusions=said, first=FIRST.get(name, []), more=["report.md"],
                trouble=["3 failed of 12 trials."] if failed and name == "tune" else [],
                findings=[("Cautions", ["One.", "Two."])] if name == "final" else [],
            ),
            passed=PassedValues(), seconds=30.0, exit_code=int(failed and name == "tune"),
        )
        for name, (title, said) in STEPS.items()
    ]  # fmt: skip
    shown = screens(study._report(wanted, record, done))
    assert "7 of 7 steps in 3.5 minutes" in shown and "2 cautions about these figures: --full lists all." in shown
    assert ("tune: Tuning (exit code 1)." in shown) == ("tune: 3 failed of 12 trials." in shown) == failed

"""The one builder of stored comparisons, their rows and results, and of files of
pytest-benchmark: made up, with round numbers."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pydantic

from common import spec
from common.artifacts import results
from common.artifacts.checkpoint import Checkpoint, Identity, Progress
from common.artifacts.schema import EpochRecord, Metrics, Noise, Phases, ProfiledOperation, RunResult, StepParts, TopOperations
from common.machine.interference import Usage
from common.machine.rates import Rates
from common.models.work import Work
from compare.results.store import SPEC_FILE, Comparison, ProofRecord, SetAside, StoredComparison, run_folder, write_plan
from compare.running.comparison_settings import ComparisonSettings
from compare.running.matrix import Row, Unavailable

Record = TypeVar("Record", bound=pydantic.BaseModel)


def row(framework: str, mode: str = "serial", cores: int = 2, unavailable: str | None = None) -> Row:
    replicas = 1 if mode == "serial" else 2
    made = spec.build({"mode": mode, "replicas": replicas, "cores": cores, "epochs": 2})
    return Row(
        id=f"{framework}-{mode}-{cores}",
        contestant=framework,
        spec=made,
        unavailable=Unavailable.read(unavailable) if unavailable else None,
    )


def score(accuracy: float, loss: float, images: int = 100) -> Metrics:
    num_correct = round(images * accuracy)
    return Metrics(loss=loss, accuracy=num_correct / images, num_correct=num_correct, num_examples=images)


def epoch(number: int, seconds: float, accuracy: float = 0.5, loss: float = 1.0) -> EpochRecord:
    """Of 10 steps, of which the first epoch's first is not timed.

    Args:
        seconds: of all 10 at its pace.
    """
    timed = 10 - (number == 1)
    return EpochRecord(
        epoch=number, steps=10, images=640, epoch_images=640, learning_rate=0.05,
        train=score(accuracy, loss, 640), validation=score(accuracy, loss),
        timed_seconds=seconds * timed / 10, timed_steps=timed, timed_images=64 * timed, input_wait_seconds=0.0625,
        evaluation_seconds=0.1, first_step_seconds=0.25 if number == 1 else None,
    )  # fmt: skip


def good(row: Row, seconds: float, repeat: int = 0, first_step_loss: float = 2.3, cores_used: float = 0.9) -> RunResult:
    made = RunResult(
        framework=row.framework,
        spec=row.spec,
        status="ok",
        repeat=repeat,
        implementation="one replica",
        device="cpu",
        cores_used=cores_used,
        epochs=[epoch(1, seconds), epoch(2, seconds, 0.75, 0.5)],
        test=score(0.7, 0.6),
        first_step_loss=first_step_loss,
        phases=Phases(
            import_seconds=2.0, build_seconds=0.5, first_step_seconds=0.25, training_seconds=1.9 * seconds,
            input_wait_seconds=0.125, evaluation_seconds=0.5, other_seconds=0.25, wall_seconds=3.5 + 1.9 * seconds,
        ),
        peak_memory_mib=512.0,
        threads={"intra_op": row.spec.cores // row.spec.replicas, "inter_op": 1, "input": 0},
        conditions=conditions(row),
        switches={"onednn": True, "cudnn_autotune": True, "data_on": "host"},
        order_hash="order",
        weights_hash="weights",
        data_hash="data",
    )  # fmt: skip
    return of_spec(made, row.spec)


def conditions(row: Row) -> dict[str, str]:
    """As each framework has them by default."""
    own = {"pytorch": ("NCHW", "eager", "Python threads"), "tensorflow": ("NHWC", "graph", "MirroredStrategy")}
    layout, graph, replicas = own.get(row.framework, own["pytorch"])
    return {
        "layout": layout,
        "graph": graph,
        "precision": row.spec.precision,
        "mechanism": replicas if row.spec.mode == "data_parallel" else "one replica",
        "allocator": "keeps freed pages",
        "deterministic": "not enforced",
    }


def checkpoint() -> Checkpoint:
    """Of a run after its first epoch."""
    run = good(row("pytorch"), 1.0)
    assert run.phases is not None
    identity = Identity(
        framework="pytorch", spec=run.spec, repeat=0, versions={}, data_hash="data", weights_hash="weights"
    )  # fmt: skip
    progress = Progress(
        identity=identity, epochs=run.epochs[:1], phases=run.phases, first_step_loss=2.3, resumes=0, usage=Usage(),
        load_start=None, frequency_start_mhz=None, peak_memory_mib=1.0,
    )  # fmt: skip
    return Checkpoint(progress, np.arange(3), {"kernel": np.ones((2, 2))}, {})


def bad(row: Row, status: str, reason: str, epochs: int) -> RunResult:
    return RunResult.model_validate(
        {"framework": row.framework, "spec": row.spec, "status": status, "reason": reason}
        | {"epochs": [epoch(number + 1, 1.0) for number in range(epochs)]}
    )


def comparison(rows: list[Row], repeats: int = 1, proof: ProofRecord | None = None) -> Comparison:
    return Comparison(
        created_at="2026-01-01T00:00:00+00:00",
        argv=["run"],
        code_hash="0" * 64,
        rows=rows,
        settings=ComparisonSettings(repeats=repeats),
        data_name="digits",
        data_hash="data",
        versions={"pytorch": {"torch": "2.0"}, "tensorflow": {"tensorflow": "2.1"}},
        machine={"processor": "Some CPU"},
        proof=proof,
    )


def input_only(timed_steps: int = 20, repeats: int = 5) -> StoredComparison:
    """The input alone, in two frameworks, inline and with workers; each run has an epoch of one quick batch."""
    rows: list[Row] = []
    for framework in ("pytorch", "tensorflow"):
        for workers in (0, 1, 2):
            fed = {"input": "workers", "workers": workers} if workers else {}
            made = spec.build({"cores": 2, "epochs": 2, "part": "input", **fed})
            rows.append(Row(id=f"{framework}-serial-2-{workers}workers", contestant=framework, spec=made))
    runs: dict[str, dict[int, RunResult]] = {}
    for each in rows:
        seconds = 4.0 if each.contestant == "pytorch" else 8.0
        scoreless = {"train": None, "validation": None}
        rest = {"timed_steps": timed_steps - 1, "timed_images": 64 * (timed_steps - 1)}
        epochs = [
            epoch(1, 0.001).model_copy(update={**scoreless, "timed_seconds": 0.001, "timed_steps": 1, "timed_images": 64}),
            epoch(2, seconds).model_copy(update={**scoreless, **rest}),
        ]
        run = good(each, seconds).model_copy(update={"epochs": epochs, "test": None, "first_step_loss": None})
        runs[each.id] = {repeat: run.model_copy(update={"repeat": repeat}) for repeat in range(repeats)}
    return StoredComparison(comparison=comparison(rows, repeats), runs=runs, set_aside=[])


def troubled() -> StoredComparison:
    """Every kind of row: good, failed, killed after an epoch, not parallel, not available and missing."""
    rows = [
        row("pytorch", cores=1),
        row("pytorch", cores=2),
        row("pytorch", "data_parallel"),
        row("pytorch", "multi_process"),
        row("tensorflow", cores=1),
        row("tensorflow", cores=2),
        row("tensorflow", "data_parallel", unavailable="not available: needs 2 CUDA devices, found 0"),
        row("tensorflow", "multi_process"),
    ]
    not_parallel = good(rows[2], 2.0).model_copy(update={"status": "not parallel", "reason": "one device holds both replicas"})
    runs = {
        rows[0].id: {0: good(rows[0], 4.0).model_copy(update={"step_losses": [2.3, 2.0]})},
        rows[1].id: {0: good(rows[1], 2.5, cores_used=2.4)},
        rows[2].id: {0: not_parallel},
        rows[3].id: {0: bad(rows[3], "killed", "killed by SIGKILL", epochs=1)},
        rows[4].id: {0: good(rows[4], 2.0, first_step_loss=2.3000001).model_copy(update={"step_losses": [2.3000001, 2.0001]})},
        rows[5].id: {0: bad(rows[5], "failed", "exit code 1: RuntimeError: [red]=cmd|\x1b[31m\n", epochs=0)},
        rows[6].id: {},
        rows[7].id: {},
    }
    proof = ProofRecord(
        verdict="proved",
        sentence="Losses agree to 3e-15.",
        rungs=[{"name": "5 losses", "precision": "float32", "where": "differs by 4e-08 at step 1, 2e-05 at step 20"}],
        mode_verdicts={"pytorch": {"serial": "proved", "multi_process": "proved"}, "tensorflow": {"serial": "proved"}},
    )
    return StoredComparison(
        comparison=comparison(rows, proof=proof),
        runs=runs,
        set_aside=[SetAside("x", "runs/x-r0/result.json is not a whole result")],
    )


def repeated(repeats: int = 5) -> StoredComparison:
    """Two frameworks, serial and data_parallel on two cores, with enough repeats for verdicts."""
    rows = [row(name, mode) for name in ("pytorch", "tensorflow") for mode in ("serial", "data_parallel")]
    base = {
        "pytorch-serial-2": 4.0,
        "pytorch-data_parallel-2": 2.0,
        "tensorflow-serial-2": 4.01,
        "tensorflow-data_parallel-2": 6.0,
    }
    noise = (1.0, 1.02, 0.98, 1.01, 0.99)
    runs = {
        each.id: {repeat: good(each, base[each.id] * noise[(repeat + index) % 5], repeat) for repeat in range(repeats)}
        for index, each in enumerate(rows)
    }
    return StoredComparison(comparison=comparison(rows, repeats), runs=runs, set_aside=[])


def observed() -> StoredComparison:
    """As `repeated`, each repeat of another seed, with a target, what else the machine did, and what it could do."""
    stored = repeated()
    counted = Work(forward_flops=10**9, backward_flops=2 * 10**9, values_moved=10**6, weights=10**5)
    rates = {2: Rates(cores=2, float32_gflops=960.0, float64_gflops=480.0, copy_gb_per_second=1.28)}
    facts = {"settings__seeds": (0, 1, 2, 3, 4), "settings__target_accuracy": 0.75, "work": counted, "rates": rates}
    plan = with_fields(stored.comparison, **facts)
    for row in plan.rows:
        for repeat, result in stored.runs[row.id].items():
            noise = Noise(load_start=1.0 + repeat, load_end=2.0, frequency_end_mhz=3000.0 - repeat, cores_stolen=0.01)
            update = {"spec": plan.row_for_repeat(row, repeat).spec, "noise": noise, "test": score(0.7 + 0.01 * repeat, 0.6)}
            stored.runs[row.id][repeat] = result.model_copy(update=update)
    late = stored.runs["tensorflow-data_parallel-2"]
    late[2] = never_better(late[2])
    never = stored.runs["tensorflow-serial-2"]
    never.update({repeat: never_better(run) for repeat, run in never.items()})
    return stored.model_copy(update={"comparison": plan})


def paced(run: RunResult, factor: float) -> RunResult:
    """The same run, its timed epochs so many times as long. Its phases are those of its epochs."""
    assert run.phases is not None
    epochs = [each.model_copy(update={"timed_seconds": factor * each.timed_seconds}) for each in run.epochs]
    of_epochs = {
        "training_seconds": sum(each.timed_seconds for each in epochs),
        "input_wait_seconds": sum(each.input_wait_seconds for each in epochs),
        "evaluation_seconds": 0.3 + sum(each.evaluation_seconds for each in epochs),
    }
    parts = run.phases.model_dump(exclude={"wall_seconds"}) | of_epochs
    wall_seconds = sum(parts.values()) - parts["input_wait_seconds"]
    return run.model_copy(update={"epochs": epochs, "phases": Phases(**parts, wall_seconds=wall_seconds)})


def never_better(run: RunResult) -> RunResult:
    """The same run without progress after its first epoch."""
    first, second = run.epochs
    same = second.model_copy(update={"train": first.train, "validation": first.validation})
    return run.model_copy(update={"epochs": [first, same]})


def profiled() -> StoredComparison:
    """As `repeated`, a step's parts timed apart where that can be done."""
    stored = repeated(1)
    apart = StepParts(
        steps=20, step_seconds=0.03125, compute_seconds=0.025, communication_hidden_seconds=0.0125,
        communication_exposed_seconds=0.00625, idle_seconds=0.002, transfer_seconds=0.00025, forward_seconds=0.008,
        backward_seconds=0.0145, optimizer_seconds=0.0025, pieces="each by itself",
    )  # fmt: skip
    fused = StepParts(
        steps=20, step_seconds=0.0625, not_separable="the framework computes and sends in one", pieces="sent in between"
    )
    parts = {"pytorch-data_parallel-2": apart, "tensorflow-data_parallel-2": fused}
    looked_at = {
        "pytorch-data_parallel-2": [("aten::mkldnn_convolution", 8, 0.005, 0.4), ("aten::native_batch_norm", 16, 0.0025, 0.2)],
        "tensorflow-data_parallel-2": [("Conv2DBackpropFilter", 7.5, 0.01, 0.25)],
    }
    for row_id, result in ((row_id, repeats[0]) for row_id, repeats in stored.runs.items()):
        if row_id in parts:
            told = [
                ProfiledOperation(name=name, calls=calls, self_seconds=seconds, share=share)
                for name, calls, seconds, share in looked_at[row_id]
            ]
            failure = None if result.framework == "pytorch" else "the trace cannot be written: no room"
            found = TopOperations(steps=3, operations=told, trace=None if failure else "trace.json.gz", failure=failure)
            values = {"step_parts": parts[row_id], "bytes_per_step": 1.5 * 2**20, "top_operations": found}
            stored.runs[row_id][0] = result.model_copy(update=values)
    return stored


HOSTILE = [
    "<script>document.title = 'run'</script>",
    '"><img src=x onerror="document.title = 1">',
    "=cmd|' /C calc'!A0",
    "\u202eright to left\u200f",
    "{{ 7 * 7 }}{% raw %}",
    "</style></script><!--",
    "javascript:alert(1)",
    "a\x1b[31m\nb\\input{x}$&",
]
"""Class names, paths and sentences that a page must show and never obey."""


def hostile(num_classes: int = len(HOSTILE)) -> StoredComparison:
    """As `repeated`, all text from outside hostile, with confusion matrices and a certificate."""
    stored = repeated(1)
    names = [HOSTILE[label] if label < len(HOSTILE) else f"Class___number_{label} (of many)" for label in range(num_classes)]
    text = " ".join(HOSTILE)
    rung = {"name": "5 losses", "model": HOSTILE[0], "optimizer": "sgd", "precision": "float64", "steps": 50, "step": 7}
    rungs = [
        {**rung, "max_relative_difference": 4e-16, "tolerance": 1e-12, "reason": HOSTILE[1], "status": "passed"},
        {**rung, "max_relative_difference": float("inf"), "tolerance": 0.0, "reason": text, "status": "failed", "where": text},
    ]
    proof = ProofRecord(
        verdict="proved",
        sentence=text,
        mode_verdicts={"pytorch": {"serial": "proved"}, HOSTILE[0]: {"serial": "not claimed"}},
        not_claimed={"serial": text},
        rungs=rungs,
    )
    comparison = stored.comparison.model_copy(
        update={"class_names": names, "data_name": text, "data_notes": HOSTILE, "argv": ["run", "--data", *HOSTILE]}
        | {"machine": {"processor": text, "path": HOSTILE, "commit": HOSTILE[0]}, "proof": proof}
    )
    counts = [[20 * (a == b) + (7 * a + 3 * b) % 5 for b in range(num_classes)] for a in range(num_classes)]
    right, images = sum(counts[label][label] for label in range(num_classes)), sum(map(sum, counts))
    test = Metrics(loss=0.6, accuracy=right / images, num_correct=right, num_examples=images)
    runs = {
        row_id: {repeat: run.model_copy(update={"confusion": counts, "test": test}) for repeat, run in repeats.items()}
        for row_id, repeats in stored.runs.items()
    }
    return StoredComparison(comparison=comparison, runs=runs, set_aside=[SetAside("x", text)])


def of_spec(run: RunResult, wanted: spec.Spec) -> RunResult:
    """The same run of another spec: its epochs at the same pace, the last one again where there are more of them."""
    if wanted.epochs is None or run.phases is None:
        return run.model_copy(update={"spec": wanted})
    batch, steps = min(wanted.global_batch_size, 640), -(-640 // wanted.global_batch_size)
    epochs = list[EpochRecord]()
    for number in range(1, wanted.epochs + 1):
        like, untimed = run.epochs[min(number, len(run.epochs)) - 1], number == 1
        epochs.append(
            like.model_copy(
                update={
                    "epoch": number, "steps": steps, "timed_steps": steps - untimed, "timed_images": 640 - untimed * batch,
                    "learning_rate": wanted.learning_rate(number * steps - 1, steps, wanted.epochs * steps),
                    "timed_seconds": like.seconds * (640 - untimed * batch) / 640,
                }
            )
        )  # fmt: skip
    made = run.model_copy(update={"spec": wanted, "epochs": epochs})
    return made if made == run else paced(made, 1.0)


def of_rows(rows: Sequence[Row], seconds: float | Sequence[float] = 1.0, repeats: int = 1, **fields: Any) -> StoredComparison:
    """Good runs of these rows.

    Args:
        rows: the plan's rows.
        seconds: of an epoch: of all rows, or of each.
        repeats: of each row.
        fields: as `with_runs` takes them.
    """
    of_each = [seconds] * len(rows) if isinstance(seconds, int | float) else seconds
    runs = {
        row.id: {repeat: good(row, own, repeat) for repeat in range(repeats)} for row, own in zip(rows, of_each, strict=True)
    }
    return with_runs(StoredComparison(comparison=comparison(list(rows), repeats), runs=runs, set_aside=[]), **fields)


def other_work(stored: StoredComparison, data_hash: str = "data", **fields: Any) -> StoredComparison:
    """The same comparison with other fields in all specs."""
    rows = [row.model_copy(update={"spec": row.spec.with_fields(**fields)}) for row in stored.comparison.rows]
    specs = {row.id: row.spec for row in rows}
    runs = {
        row_id: {repeat: of_spec(run, specs[row_id]) for repeat, run in repeats.items()}
        for row_id, repeats in stored.runs.items()
    }
    plan = stored.comparison.model_copy(update={"rows": rows, "data_hash": data_hash})
    return stored.model_copy(update={"comparison": plan, "runs": runs})


def stored_in(stored: StoredComparison, folder: Path) -> Path:
    """Write a comparison as a run of it leaves it behind."""
    write_plan(folder, stored.comparison)
    for row_id, repeats in stored.runs.items():
        for repeat, result in repeats.items():
            results.save(result, run_folder(folder, row_id, repeat))
    return folder


def with_fields(record: Record, **fields: Any) -> Record:
    """A copy of a record with other fields. `phases__import_seconds=3.0` changes a field of the record in `phases`."""
    update: dict[str, Any] = {}
    for name, value in fields.items():
        outer, _, inner = name.partition("__")
        update[outer] = with_fields(update.get(outer, getattr(record, outer)), **{inner: value}) if inner else value
    return record.model_copy(update=update)


def with_plan(stored: StoredComparison, **fields: Any) -> StoredComparison:
    """A copy whose plan (`compare.json`) has other fields, as `with_fields` takes them."""
    return stored.model_copy(update={"comparison": with_fields(stored.comparison, **fields)})


def with_rows(stored: StoredComparison, rows: str = "", **fields: Any) -> StoredComparison:
    """A copy in which those rows have other fields whose id contains `rows`. Their runs stay as they are."""
    changed_rows = [with_fields(row, **fields) if rows in row.id else row for row in stored.comparison.rows]
    return with_plan(stored, rows=changed_rows)


def with_runs(
    stored: StoredComparison, rows: str = "", repeats: Sequence[int] | None = None, **fields: Any
) -> StoredComparison:
    """A copy in which some runs have other fields.

    Args:
        stored: the comparison.
        rows: a part of the ids of the rows; empty: all.
        repeats: of these rows, from 0; None: all.
        fields: as `with_fields` takes them. A function gets the run and returns the value.
    """

    def change(run: RunResult) -> RunResult:
        return with_fields(run, **{name: value(run) if callable(value) else value for name, value in fields.items()})

    runs = {
        row_id: {
            repeat: change(run) if rows in row_id and (repeats is None or repeat in repeats) else run
            for repeat, run in runs.items()
        }
        for row_id, runs in stored.runs.items()
    }
    return stored.model_copy(update={"runs": runs})


NOISE = (1.0, 1.02, 0.98, 1.01, 0.99)
"""Of five repeats: 1.6 % of standard deviation."""
MACHINE = {"processor": "Some CPU", "logical_cores": 2, "python": "3.11.2", "commit": "a" * 40, "dirty": False}


def results_folder(
    path: Path,
    seconds: Mapping[str, float],
    *,
    noise: Sequence[float] = NOISE,
    created_at: str = "2026-01-01T00:00:00+00:00",
    machine: dict[str, Any] | None = None,
    verdict: str | None = None,
    accuracy: float | Sequence[float] = 0.7,
    seeds: Sequence[int] = (),
    first_losses: Mapping[str, float] | None = None,
    rows: Sequence[Row] | None = None,
    changed: Mapping[str, Any] | None = None,
    **plan: Any,
) -> Path:
    """A results folder.

    Args:
        path: the folder.
        seconds: framework: an epoch's, of its serial row.
        noise: factor of each repeat.
        created_at: of the comparison.
        machine: what it says of the machine beyond MACHINE.
        verdict: of the proof; None: there was none.
        accuracy: on the test split of 1,000 examples, of all repeats or of each.
        seeds: of the repeats; none: all have the same.
        first_losses: framework: before any update; 2.3 of those that are not in it.
        rows: one a framework; None: serial on two cores.
        changed: fields of each result.
        plan: fields of the comparison.
    """
    rows = rows or [row(framework) for framework in seconds]
    modes = {framework: {"serial": verdict} for framework in seconds} if verdict else {}
    proof = ProofRecord(verdict=verdict, sentence="Losses agree.", mode_verdicts=modes) if verdict else None
    fields = {"created_at": created_at, "machine": MACHINE | (machine or {}), "settings__seeds": tuple(seeds), **plan}
    stored = with_fields(comparison(list(rows), repeats=len(noise), proof=proof), **fields)
    write_plan(path, stored)
    accuracies = [accuracy] * len(noise) if isinstance(accuracy, int | float) else accuracy
    for planned in rows:
        for repeat, factor in enumerate(noise):
            first_loss = (first_losses or {}).get(planned.contestant, 2.3)
            run = good(planned, seconds[planned.contestant] * factor, repeat, first_step_loss=first_loss)
            test = Metrics(
                loss=0.6, accuracy=accuracies[repeat], num_correct=round(1000 * accuracies[repeat]), num_examples=1000
            )
            run = of_spec(run, stored.row_for_repeat(planned, repeat).spec).model_copy(update={"test": test, **(changed or {})})
            results.save(run, run_folder(path, planned.id, repeat))
    return path


def benchmark_file(
    path: Path,
    samples: Mapping[str, Sequence[float]],
    *,
    measured_at: str = "2026-01-01T00:00:00+00:00",
    commit: str = "a" * 40,
    dirty: bool = False,
    keep: bool = True,
    machine: dict[str, Any] | None = None,
) -> Path:
    """A file as pytest-benchmark 5 writes it, with the suite's facts of the machine.

    Args:
        path: the file.
        samples: benchmark: its seconds, a round each.
        measured_at: when.
        commit: of the code.
        dirty: whether it had changes.
        keep: whether the samples are kept beside their statistics.
        machine: `machine_info`; None: this suite's.
    """
    own = {"convtwins": {"processor": "Some CPU", "logical_cores": 2, "system": "Linux", "versions": {"torch": "2.0"}}}
    benchmarks = []
    for name, seconds in samples.items():
        ordered = sorted(seconds)
        middle, quarter = len(ordered) // 2, len(ordered) // 4
        stats = {"median": ordered[middle], "q1": ordered[quarter], "q3": ordered[-1 - quarter], "rounds": len(ordered)}
        benchmarks.append(
            {"name": name, "fullname": f"tests/benchmarks/test_steps.py::{name}"}
            | {"stats": stats | ({"data": list(seconds)} if keep else {})}
        )
    values = {
        "machine_info": {"python_version": "3.11.2", "release": "6.1", **(own if machine is None else machine)},
        "commit_info": {"id": commit, "dirty": dirty, "time": measured_at},
        "benchmarks": benchmarks,
        "datetime": measured_at,
        "version": "5.3.1",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
    return path


def overlaps(folder: Path, *rows: Row) -> set[frozenset[str]]:
    """Which rows had runs at the same time, from the start of the one until the end of the other."""
    spans = {
        row.id: tuple((run_folder(folder, row.id, 0) / name).stat().st_mtime for name in (SPEC_FILE, results.RESULT_FILE))
        for row in rows
    }
    return {
        frozenset((one.id, other.id))
        for one, other in itertools.combinations(rows, 2)
        if max(spans[one.id][0], spans[other.id][0]) < min(spans[one.id][1], spans[other.id][1])
    }

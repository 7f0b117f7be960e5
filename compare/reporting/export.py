"""`convtwins export`: the runs of a comparison for tools that track experiments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from common.artifacts import atomic_files
from common.artifacts.schema import Metrics, RunResult
from common.machine.machine import INSTALLED
from common.spec import SpecError
from compare.cli import commands, wording
from compare.cli.errors import FolderError
from compare.cli.option_types import Choice
from compare.reporting import tables
from compare.results import store
from compare.results.store import StoredComparison
from compare.results.workspace import FolderKind
from compare.running import options

EXTRAS_FILE = "requirements-tracking.txt"

_MLFLOW_LENGTH = 6000
"""Most characters of a parameter in MLflow."""
_MLFLOW_PARAMS = 100
"""Most parameters of one call to MLflow."""


def _tensorboard(stored: StoredComparison, runs: list[tuple[str, RunResult]], out: Path) -> None:
    """Write a folder of events for each run."""
    with _hide_module("torch"):  # tensorboardX would import it for seconds, and needs it for nothing here
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]

    for name, run in runs:
        with SummaryWriter(str(out / name)) as writer:
            writer.add_text("spec", f"```json\n{run.spec.to_json()}\n```", walltime=_start_time(run))
            writer.add_text(
                "status", tables.escaped(": ".join(filter(None, [run.status, run.reason]))), walltime=_start_time(run)
            )
            for step, moment, tag, value in _scalars(run):
                writer.add_scalar(tag, value, step, walltime=moment)


def _mlflow(stored: StoredComparison, runs: list[tuple[str, RunResult]], out: Path) -> None:
    """Write an experiment into a new store, with an MLflow run for each run. The client sets nothing global."""
    from mlflow.entities import Metric, Param, RunTag  # pyright: ignore[reportMissingImports]
    from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

    out.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=f"sqlite:///{(out / 'mlflow.db').resolve()}")
    spec = stored.comparison.rows[0].spec
    title = wording.one_line(f"{spec.model_label} on {stored.comparison.data_name}")
    experiment = client.create_experiment(title, artifact_location=(out / "artifacts").resolve().as_uri())
    contestants = {row.id: row.contestant for row in stored.comparison.rows}
    for name, run in runs:
        mlflow_run = client.create_run(experiment, start_time=round(1000 * _start_time(run)), run_name=name)
        run_id = mlflow_run.info.run_id
        fields = store.flatten(run.spec.model_dump(mode="json"))
        params = [Param(field, str(value)[:_MLFLOW_LENGTH]) for field, value in fields.items()]
        for first in range(0, len(params), _MLFLOW_PARAMS):
            client.log_batch(run_id, params=params[first : first + _MLFLOW_PARAMS])
        facts = {
            "contestant": contestants[name.rpartition("-r")[0]],
            "framework": run.framework,
            "mode": run.spec.variant,
            "status": run.status,
            "reason": run.reason,
        }
        client.log_batch(run_id, tags=[RunTag(fact, wording.one_line(value)) for fact, value in facts.items() if value])
        metrics = [Metric(tag, value, round(1000 * moment), step) for step, moment, tag, value in _scalars(run)]
        for first in range(0, len(metrics), 1000):
            client.log_batch(run_id, metrics=metrics[first : first + 1000])
        end = _start_time(run) + (run.phases.wall_seconds if run.phases else 0.0)
        client.set_terminated(run_id, "FINISHED" if run.status == "ok" else "FAILED", end_time=round(1000 * end))


@contextmanager
def _hide_module(module: str) -> Generator[None]:
    """Hide an installed module that is not imported yet."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        del sys.modules[module]


def _scalars(run: RunResult) -> Iterator[tuple[int, float, str, float]]:
    """Yield (epoch, seconds since 1970, tag, value) for every value that belongs to an epoch."""
    moment = _start_time(run)
    if run.phases:
        moment += (
            run.phases.import_seconds + run.phases.build_seconds + run.phases.first_step_seconds + run.phases.compile_seconds
        )
    for record in run.epochs:
        moment += record.training_seconds + record.evaluation_seconds
        values = {
            **_scores("train", record.train),
            **_scores("validation", record.validation),
            "learning_rate": record.learning_rate,
            "seconds_per_epoch": record.seconds,
            "images_per_second": record.images_per_second,
        }
        for tag, value in values.items():
            yield record.epoch, moment, tag, value
    for tag, value in _scores("test", run.test).items():
        yield len(run.epochs), moment, tag, value


def _scores(split: str, scores: Metrics | None) -> dict[str, float]:
    return {f"{split}/loss": scores.loss, f"{split}/accuracy": scores.accuracy} if scores else {}


def _start_time(run: RunResult) -> float:
    """Start in seconds since 1970. 0 if the run died before it recorded one."""
    return datetime.fromisoformat(run.started_at).timestamp() if run.started_at else 0.0


class _Tool(NamedTuple):
    """One tool that shows runs."""

    write: Callable[[StoredComparison, list[tuple[str, RunResult]], Path], None]
    viewer: str
    """Command that shows what was written."""


_TOOLS = {
    "tensorboard": _Tool(_tensorboard, "tensorboard --logdir {out}"),
    "mlflow": _Tool(_mlflow, "mlflow ui --backend-store-uri sqlite:///{out}/mlflow.db"),
}


@commands.command()
def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The results folder of a comparison.")],
    to: Annotated[str, Choice(tuple(_TOOLS)), typer.Option(help="tensorboard: event files; mlflow: a store in SQLite.")],
    out: Annotated[Path, typer.Option(help=f"{options.OUT} A new or an empty one.")],
) -> None:
    """Write the runs of a comparison as TensorBoard event files, or into an MLflow store."""
    FolderKind[None](noun="export").check(out)  # runs would be in it twice
    stored = store.read(folder)
    try:
        count = export(stored, to, out)
    except OSError as error:
        advice = atomic_files.remedy(error, "choose another --out")
        raise FolderError(f"{out} cannot be written ({error}). {advice}") from None
    typer.echo(f"{wording.count(count, 'run')} written. Look at them with: {_TOOLS[to].viewer.format(out=out)}")


def export(stored: StoredComparison, to: str, out: Path) -> int:
    """Write every run that has a result. Failed runs have the epochs that they reached.

    Returns:
        Number of runs.
    """
    runs = [(f"{row_id}-r{repeat}", run) for row_id, repeats in stored.runs.items() for repeat, run in sorted(repeats.items())]
    try:
        _TOOLS[to].write(stored, runs, out)
    except ModuleNotFoundError as error:
        raise SpecError(
            f"--to {to} needs {error.name}, which is not installed. Install the extras for tracking: "
            + ("pip install 'convtwins[tracking]'" if INSTALLED else f".venv/bin/python -m pip install -r {EXTRAS_FILE}")
        ) from None
    return len(runs)

"""Speed-ups of a scaling, the laws fitted to them, and a check of the model of what processes send each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from common.artifacts.schema import RunResult
from common.frozen import Frozen
from common.spec import MODES, Mode
from common.training.compression import SUMMABLE
from compare.cli.errors import FolderError
from compare.judgement import sameness
from compare.judgement.row_figures import Summary
from compare.judgement.run_figures import finite_median, images_per_second
from compare.judgement.run_pairs import finished_runs, pairs_of_seconds, ratio_of_seconds, serial_row_of, uses_accelerator
from compare.judgement.summary import summarize
from compare.results.store import StoredComparison
from compare.running.matrix import Row
from compare.statistics import scaling_laws
from compare.statistics.scaling_laws import Compute, Kind, SerialFraction, Topology
from compare.statistics.statistics import Ratio, Spread


class ScalingPoint(Frozen):
    """One mode at one number of replicas."""

    id: str
    contestant: str
    mode: str
    kind: Kind
    """`strong`: the global batch is fixed; `weak`: it grows with the replicas."""
    replicas: int
    cores: int
    oversubscribed: bool
    """Whether replicas share cores, because there are more replicas than cores; see `summary.oversubscribed`."""
    global_batch_size: int
    per_replica_batch_size: int
    workers: int
    status: str
    disturbed: bool = False
    """Whether other work disturbed this run or its serial run. Then no report shows its ratios, and no law is fitted to it."""
    in_doubt: bool
    """Whether other work disturbed this run or a run that it is compared with, or the runs were too short to tell."""
    images_per_second: Spread | None
    speedup_one_core: Ratio | None
    """Epoch seconds of serial on one core, with the per-replica batch of the weak runs, divided by this row's."""
    speedup_same_cores: Ratio | None
    """Epoch seconds of serial on as many cores, with the same global batch, divided by this row's."""
    speedup_same_batch: Ratio | None
    """Epoch seconds of serial on one core with this row's per-replica batch, divided by this row's."""
    efficiency_one_core: float | None
    """speedup_one_core / cores; on accelerators, / replicas."""
    efficiency_same_batch: float | None


class ScalingLaw(Frozen):
    """A law fitted to the points of one mode. Points with more replicas than cores, or disturbed ones, are left out."""

    contestant: str
    mode: str
    workers: int
    fraction: SerialFraction


class ExchangeCheck(Frozen):
    """Check of the model: fitted on the smaller runs, and compared with the largest measured run."""

    contestant: str
    mode: str
    kind: Kind
    workers: int
    replicas: int
    fitted_on: list[int]
    """Numbers of replicas of the parallel runs that the link was fitted on. Empty: compute alone."""
    predicted_seconds: float
    measured_seconds: float

    @property
    def error(self) -> float:
        """Relative error of a step: (predicted - measured) / measured."""
        return self.predicted_seconds / self.measured_seconds - 1.0


class ScalingResult(Frozen):
    """The complete result of `convtwins scaling`."""

    points: list[ScalingPoint]
    laws: list[ScalingLaw]
    checks: list[ExchangeCheck]


def read(stored: StoredComparison) -> ScalingResult:
    """Compute the scaling of a comparison of `scaling_rows.build_rows`. No ratios if its runs did not train the same."""
    summaries = {summary.id: summary for summary in summarize(stored)}
    points = [_point(stored, row, summaries) for row in stored.comparison.rows if row.spec.is_parallel]
    if not points:
        raise FolderError("The folder holds no parallel run. Choose one that `scaling` has filled.")
    if not sameness.is_comparable(stored, list(summaries.values())):  # the report says why
        ratios = {name: None for name in ScalingPoint.model_fields if name.startswith(("speedup", "efficiency"))}
        return ScalingResult(points=[point.model_copy(update=ratios) for point in points], laws=[], checks=[])
    rows_by_input = _group_by_input(stored)
    modes = MODES.variants(_exchanges_each_step)
    oversubscribed_ids = {point.id for point in points if point.oversubscribed}
    return ScalingResult(
        points=points,
        laws=_laws(stored, points),
        checks=[check for rows in rows_by_input for mode in modes for check in _checks(stored, rows, mode, oversubscribed_ids)],
    )


def _point(stored: StoredComparison, row: Row, summaries: Mapping[str, Summary]) -> ScalingPoint:
    spec, summary = row.spec, summaries[row.id]
    global_batch, replica_batch = spec.global_batch_size, spec.per_replica_batch_size
    base_configurations = ((1, _base_batch(stored)), (spec.cores, global_batch), (1, replica_batch))
    bases = [serial_row_of(stored.comparison, row, cores=cores, batch=batch) for cores, batch in base_configurations]
    one_core, same_cores, same_batch = (ratio_of_seconds(stored, slow=base, fast=row) if base else None for base in bases)
    resources = spec.replicas if uses_accelerator(summary.device) else spec.cores
    return ScalingPoint(
        id=row.id,
        contestant=row.contestant,
        mode=spec.variant,
        kind=_kind(stored, row),
        replicas=spec.replicas,
        cores=spec.cores,
        oversubscribed=summary.oversubscribed,
        global_batch_size=global_batch,
        per_replica_batch_size=replica_batch,
        workers=spec.workers,
        status=summary.status,
        disturbed=any(summaries[compared_row.id].disturbed for compared_row in (row, *filter(None, bases))),
        in_doubt=any(summaries[compared_row.id].in_doubt for compared_row in (row, *filter(None, bases))),
        images_per_second=summary.images_per_second,
        speedup_one_core=one_core,
        speedup_same_cores=same_cores,
        speedup_same_batch=same_batch,
        efficiency_one_core=one_core.value / resources if one_core else None,
        efficiency_same_batch=same_batch.value / resources if same_batch else None,
    )


def _base_batch(stored: StoredComparison) -> int | None:
    """Return the batch that everything is scaled up from: the batch of the first serial row, which `build_rows` puts first."""
    return next((row.spec.global_batch_size for row in stored.comparison.rows if not row.spec.is_parallel), None)


def _kind(stored: StoredComparison, row: Row) -> Kind:
    """Return the kind of scaling of a row: weak if its batch has grown with the replicas."""
    return "strong" if _base_batch(stored) in (None, row.spec.global_batch_size) else "weak"


def _laws(stored: StoredComparison, points: Sequence[ScalingPoint]) -> list[ScalingLaw]:
    rows = {row.id: row for row in stored.comparison.rows}
    groups: dict[tuple[str, str, int], list[ScalingPoint]] = {}
    for point in points:
        groups.setdefault((point.contestant, point.mode, point.workers), []).append(point)
    return [
        ScalingLaw(contestant=contestant, mode=mode, workers=workers, fraction=fraction)
        for (contestant, mode, workers), group in groups.items()
        for kind, fit in (("strong", scaling_laws.amdahl), ("weak", scaling_laws.gustafson))
        if (fraction := fit(_gains(stored, [(rows[point.id], point) for point in group if point.kind == kind]))) is not None
    ]


def _gains(stored: StoredComparison, points: Sequence[tuple[Row, ScalingPoint]]) -> list[list[tuple[int, float]]]:
    """Return (replicas, speed-up over serial on one core) of each point, by repeat."""
    gains: dict[int, list[tuple[int, float]]] = {}
    for row, point in points:
        base = serial_row_of(stored.comparison, row, cores=1, batch=_base_batch(stored))
        if base is not None and not (point.oversubscribed or point.disturbed):
            for repeat, (serial, parallel) in pairs_of_seconds(stored, slow=base, fast=row).items():
                gains.setdefault(repeat, []).append((point.replicas, serial / parallel))
    return list(gains.values())


def _group_by_input(stored: StoredComparison) -> list[list[Row]]:
    """Group the rows by framework and input. Rows with different inputs have different speeds and cannot be used together."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in stored.comparison.rows:
        groups.setdefault((row.contestant, row.spec.input, row.spec.workers), []).append(row)
    return list(groups.values())


def _step_seconds(stored: StoredComparison, rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """Return seconds for a step of a whole batch, at the speed of the timed images, for each run of these rows."""

    def seconds(result: RunResult) -> float:
        return result.spec.global_batch_size / images_per_second(result)

    return [(row, seconds(result)) for row in rows for result in finished_runs(stored, row).values()]


def _compute(stored: StoredComparison, rows: Sequence[Row]) -> Compute | None:
    """Fit one replica's compute to serial runs on one core."""
    serial = [row for row in rows if not row.spec.is_parallel and row.spec.cores == 1]
    return scaling_laws.fit_compute([(row.spec.global_batch_size, seconds) for row, seconds in _step_seconds(stored, serial)])


def _exchanges_each_step(mode: Mode) -> bool:
    """Return whether the alpha-beta model can be checked on a mode: processes exchange gradients, and wait for them."""
    return mode.exchange is not None and not mode.has_late_gradients


def _topology(row: Row) -> Topology:
    """Return how a row exchanges gradients. Compressed data that cannot be summed is gathered by all, in every mode."""
    summable = row.spec.communication.compression in SUMMABLE
    exchange = row.spec.traits.exchange if summable else "all_gather"
    assert exchange is not None, row.spec.variant
    return exchange


def _checks(
    stored: StoredComparison, rows: Sequence[Row], mode: str, oversubscribed_ids: Collection[str]
) -> Iterator[ExchangeCheck]:
    """Compare the largest run of a mode with the model fitted on its smaller runs, for rows with the same input.

    Args:
        oversubscribed_ids: ids of rows with more replicas than cores, which are left out.
    """
    mode_rows = [row for row in rows if row.spec.variant == mode and row.id not in oversubscribed_ids]
    compute, runs = _compute(stored, rows), _step_seconds(stored, mode_rows)
    if compute is None or not runs:
        return
    topology = _topology(mode_rows[0])
    largest = max(row.spec.replicas for row, _ in runs)
    exchange_samples = [
        (row.spec.replicas, seconds - compute.step_seconds(row.spec.per_replica_batch_size))
        for row, seconds in runs
        if row.spec.replicas < largest
    ]
    # Every run sends the same bytes, so beta is per payload.
    link = scaling_laws.fit_link(topology, 1.0, exchange_samples)
    exchange = scaling_laws.exchange_seconds(topology, largest, 1.0, link)
    for row in mode_rows:
        run_seconds = [step_seconds for other, step_seconds in runs if other.id == row.id]
        if row.spec.replicas == largest and run_seconds:
            yield ExchangeCheck(
                contestant=row.contestant,
                mode=mode,
                kind=_kind(stored, row),
                workers=row.spec.workers,
                replicas=largest,
                fitted_on=sorted({replicas for replicas, _ in exchange_samples}),
                predicted_seconds=compute.step_seconds(row.spec.per_replica_batch_size) + exchange,
                measured_seconds=finite_median(run_seconds),
            )

"""Speed-ups of a scaling, the laws fitted to them, and the projection with its check."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.artifacts.schema import RunResult
from common.frozen import Frozen
from common.spec import MODES, Mode
from common.training.compression import SUMMABLE
from compare.comparison.scaling_rows import KINDS, Kind
from compare.core import scaling_laws
from compare.core.errors import FolderError
from compare.core.scaling_laws import Compute, LinkModel, SerialFraction, Topology
from compare.core.statistics import Ratio, Spread
from compare.execution.matrix import Row
from compare.execution.store import StoredComparison
from compare.judgement import sameness
from compare.judgement.row_figures import Summary
from compare.judgement.run_figures import finite_median, images_per_second
from compare.judgement.run_pairs import finished_runs, pairs_of_seconds, ratio_of_seconds, serial_row_of, uses_accelerator
from compare.judgement.summary import summarize

TOPOLOGIES: tuple[Topology, ...] = ("ring", "tree", "server")


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


class ProjectionCheck(Frozen):
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


class ScalingProjection(Frozen):
    """A projection, not measured: this machine's compute, and the gradient's bytes over a network that it does not have."""

    contestant: str
    workers: int
    kind: Kind
    topology: Topology
    network: str
    replicas: int
    step_seconds: float | None
    """Seconds of a step. None if the global batch has fewer images than replicas."""
    speedup: float | None
    """Images per second divided by those of one replica."""


class ScalingResult(Frozen):
    """The complete result of `convtwins scaling`."""

    points: list[ScalingPoint]
    laws: list[ScalingLaw]
    checks: list[ProjectionCheck]
    projected: list[ScalingProjection]


@dataclass(frozen=True)
class ProjectionTarget:
    """Numbers of replicas and the link to project to."""

    replicas: tuple[int, ...] = ()
    link: LinkModel | None = None


def read(stored: StoredComparison, target: ProjectionTarget) -> ScalingResult:
    """Compute the scaling of a comparison of `scaling_rows.build_rows`. No ratios if its runs did not train the same."""
    summaries = {summary.id: summary for summary in summarize(stored)}
    points = [_point(stored, row, summaries) for row in stored.comparison.rows if row.spec.is_parallel]
    if not points:
        raise FolderError("The folder holds no parallel run. Choose one that `scaling` has filled.")
    if not sameness.is_comparable(stored, list(summaries.values())):  # the report says why
        ratios = {name: None for name in ScalingPoint.model_fields if name.startswith(("speedup", "efficiency"))}
        return ScalingResult(points=[point.model_copy(update=ratios) for point in points], laws=[], checks=[], projected=[])
    rows_by_input = _group_by_input(stored)
    modes = MODES.variants(_exchanges_each_step)
    oversubscribed_ids = {point.id for point in points if point.oversubscribed}
    return ScalingResult(
        points=points,
        laws=_laws(stored, points),
        checks=[check for rows in rows_by_input for mode in modes for check in _checks(stored, rows, mode, oversubscribed_ids)],
        projected=[projection for rows in rows_by_input for projection in _projections(stored, rows, target)],
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


def _payload_bytes(stored: StoredComparison, rows: Sequence[Row]) -> float:
    """Return the bytes that one replica sends in a step, as measured in these runs: compressed, with the sums of BatchNorm.

    If no run is parallel: all gradients, uncompressed.
    """
    for row in rows:
        if _exchanges_each_step(row.spec.traits):
            # `bytes_per_step` counts all replicas; beta is multiplied by the bytes of each. A server's link carries all.
            num_senders = 1 if _topology(row) == "server" else row.spec.replicas
            volume = scaling_laws.exchange_terms(_topology(row), row.spec.replicas, 1.0)[1] * num_senders
            for result in finished_runs(stored, row).values():
                if result.bytes_per_step:
                    return result.bytes_per_step / volume
    comparison = stored.comparison
    return comparison.trainable_values * {"float32": 4.0, "float64": 8.0}[comparison.rows[0].spec.precision]


def _checks(
    stored: StoredComparison, rows: Sequence[Row], mode: str, oversubscribed_ids: Collection[str]
) -> Iterator[ProjectionCheck]:
    """Compare the largest run of a mode with the model fitted on its smaller runs, for rows with the same input.

    Args:
        oversubscribed_ids: ids of rows with more replicas than cores, which are left out.
    """
    mode_rows = [row for row in rows if row.spec.variant == mode and row.id not in oversubscribed_ids]
    compute, runs = _compute(stored, rows), _step_seconds(stored, mode_rows)
    if compute is None or not runs:
        return
    topology, payload = _topology(mode_rows[0]), _payload_bytes(stored, mode_rows)
    largest = max(row.spec.replicas for row, _ in runs)
    exchange_samples = [
        (row.spec.replicas, seconds - compute.step_seconds(row.spec.per_replica_batch_size))
        for row, seconds in runs
        if row.spec.replicas < largest
    ]
    link = scaling_laws.fit_link(topology, payload, exchange_samples)
    exchange = scaling_laws.exchange_seconds(topology, largest, payload, link)
    for row in mode_rows:
        run_seconds = [step_seconds for other, step_seconds in runs if other.id == row.id]
        if row.spec.replicas == largest and run_seconds:
            yield ProjectionCheck(
                contestant=row.contestant,
                mode=mode,
                kind=_kind(stored, row),
                workers=row.spec.workers,
                replicas=largest,
                fitted_on=sorted({replicas for replicas, _ in exchange_samples}),
                predicted_seconds=compute.step_seconds(row.spec.per_replica_batch_size) + exchange,
                measured_seconds=finite_median(run_seconds),
            )


def _projections(stored: StoredComparison, rows: Sequence[Row], target: ProjectionTarget) -> Iterator[ScalingProjection]:
    """Yield the projection to each requested number of replicas, for rows with the same input."""
    batch, compute = _base_batch(stored), _compute(stored, rows)
    if target.link is None or batch is None or compute is None:
        return
    payload, first = _payload_bytes(stored, rows), rows[0]
    # All ways to exchange gradients that are possible, sent as these rows send them.
    topologies = TOPOLOGIES if first.spec.communication.compression in SUMMABLE else ("all_gather",)
    for kind in KINDS:
        for topology in topologies:
            for replicas in target.replicas:
                images = batch if kind == "strong" else batch * replicas
                seconds = speedup = None
                if images >= replicas:
                    exchange = scaling_laws.exchange_seconds(topology, replicas, payload, target.link)
                    seconds = compute.step_seconds(images / replicas) + exchange
                    speedup = images / seconds * compute.step_seconds(batch) / batch
                yield ScalingProjection(
                    contestant=first.contestant,
                    workers=first.spec.workers,
                    kind=kind,
                    topology=topology,
                    network=target.link.name,
                    replicas=replicas,
                    step_seconds=seconds,
                    speedup=speedup,
                )

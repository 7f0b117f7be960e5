"""The rows of a scaling: every parallel size, and the serial rows that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from common import spec
from common.spec import SpecError
from compare.cli.option_parsing import parse_choices
from compare.running import matrix
from compare.running.comparison_settings import ComparisonSettings
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.statistics.scaling_laws import Kind


def build_rows(
    settings: ComparisonSettings, contestants: Sequence[Contestant], *, sizes: Sequence[int], kinds: Sequence[Kind]
) -> list[Row]:
    """Build the rows of a scaling.

    Args:
        settings: the values' `global_batch_size` is the global batch of strong runs, and each replica's batch in weak runs.
        sizes: numbers of replicas, each at least 2.
        kinds: kinds of scaling.
    """
    values = settings.values
    parse_choices("--modes", settings.modes, tuple(spec.MODES))
    available, batch = _cores_and_batch(values)
    rows: dict[str, Row] = {}
    for contestant in contestants:
        for input_values in [matrix.with_workers(values, number) for number in settings.workers] or [values]:
            suffix = f"-{input_values['workers']}workers" if len(settings.workers) > 1 else ""
            for name, fields in _configurations(input_values, settings.modes, sizes, kinds, available, batch):
                row_id = f"{contestant.name}-{name}{suffix}"
                rows.setdefault(row_id, matrix.build_row(row_id, contestant, spec.build(fields)))
    return list(rows.values())


def _cores_and_batch(values: dict[str, Any]) -> tuple[int, int]:
    """Return (cores on all hosts together, global batch of the first row)."""
    hosts = tuple(values.get("hosts") or ())
    # The spec is checked without hosts: every scaling begins with serial, which has none.
    first = spec.build({name: value for name, value in values.items() if name not in (("hosts", "cores") if hosts else ())})
    available = first.cores * max(len(hosts), 1)
    if hosts and values.get("cores") is not None:
        available = values["cores"]
        if type(available) is not int or available < len(hosts):
            raise SpecError(f"--cores must be a whole number, one for each host at least. Received: {available!r}.")
    return available, first.global_batch_size


def _configurations(
    values: dict[str, Any], modes: Sequence[str], sizes: Sequence[int], kinds: Sequence[Kind], available: int, batch: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, fields of the spec) of each row of one framework and one input. Some come more than once."""
    hosts = tuple(values.get("hosts") or ())

    def serial(cores: int, size: int) -> tuple[str, dict[str, Any]]:
        # Over several hosts, serial has the first: with_variant limits it to the cores that are there.
        serial_values = spec.with_variant({**values, "cores": cores, "global_batch_size": size}, "serial", 1)
        return f"serial-{serial_values['cores']}cores-batch{size}", serial_values

    yield serial(1, batch)
    for mode in modes:
        for size in sizes if spec.MODES[mode].is_parallel else ():
            for kind in kinds:
                total = batch if kind == "strong" else batch * size
                parallel_values = spec.with_variant({**values, "global_batch_size": total}, mode, size)
                parallel_values["cores"] = min(parallel_values["replicas"], available)
                parallel_values["hosts"] = hosts[: parallel_values["replicas"]]
                row = spec.build(parallel_values)
                yield f"{mode}-{row.replicas}replicas-{kind}", parallel_values
                yield serial(row.cores, total)
                yield serial(1, row.per_replica_batch_size)

"""`convtwins stragglers`: which mode suffers how much from a slow rank, measured beside the simulator."""

from __future__ import annotations

from typing import Annotated

import typer

from common.machine.private_folder import PrivateFolder
from common.spec import SpecError
from compare.core import exits
from compare.core.interrupt import interruptible
from compare.core.option_parsing import factors
from compare.core.progress import display
from compare.execution import options, results_folder, run_settings
from compare.planning import machine_file, planner, stragglers_report, straggling
from compare.planning.slow_rank import Straggler
from compare.reporting import document

MODES, REPEATS, FACTORS = "all", 5, "1.5,2,4"


@options.grouped
def command(
    *,
    of_spec: options.SpecOptions,
    compared: options.ContestantOptions,
    factor: Annotated[str, typer.Option(help="Times as slow as the others that one rank is, with commas.")] = FACTORS,
    jitter: Annotated[
        bool, typer.Option("--jitter", help="Also with each rank slow in turn, for a tenth of a second, by the largest factor.")
    ] = False,
    modes: Annotated[str | None, typer.Option(help=f"{options.MODES} Default: {MODES}.")] = None,
    replicas: options.Replicas = None,
    limit: options.Limit = None,
    cores: options.Cores = None,
    repeats: Annotated[int | None, typer.Option(min=1, help=f"{options.REPEATS} Default: {REPEATS}.")] = None,
    out: options.OutOrNone = None,
    as_json: options.AsJson = False,
) -> None:
    """Slow one rank down, and measure which mode suffers how much. The same command with the same --out goes on."""
    with exits.reported():
        slow = [Straggler(each) for each in factors("--factor", factor, above=1.0)]
        if jitter:
            slow.append(Straggler(max(each.factor for each in slow), moves=True))
        settings = run_settings.settings(*of_spec.asked(limit=limit, cores=cores, replicas=replicas))
        settings = run_settings.with_matrix(settings, modes, MODES, repeats, REPEATS)
        if "model" not in settings.values:
            raise SpecError("stragglers needs a model. Received: none. Add --model, or name one in --spec.")
        if settings.values.get("hosts"):
            raise SpecError("stragglers slows ranks of this machine. Received: hosts. Leave them out.")
        asked = planner.Asked(settings, compared.names(settings.contestants), machine_file.HERE, None)
        own = (*document.files_of(), stragglers_report.MEASURED_FOLDER)
        with (
            interruptible("Interrupted." + (" The same command goes on." if out else "")),
            results_folder.held(out, stragglers_report.RESULTS_FILE, None, "measurement of stragglers", own=own),
            PrivateFolder() as temporary,
        ):
            folder = (out or temporary.path) / stragglers_report.MEASURED_FOLDER
            with display() as shown:
                plan = planner.predict(asked, shown)
                found = straggling.measure(plan, slow, settings.repeats, folder, shown)
            code = stragglers_report.report(found, settings.repeats).deliver(out, as_json=as_json)
    raise typer.Exit(code)

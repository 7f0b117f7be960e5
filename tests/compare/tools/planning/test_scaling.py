"""Scaling: the laws against numbers known beforehand, and whole runs of fake twins."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from common.artifacts.schema import EpochRecord, Noise, RunResult
from common.spec import SpecError
from compare.reporting import comparison_report
from compare.results import store
from compare.running.comparison_settings import ComparisonSettings
from compare.running.contestants import Contestant
from compare.statistics import scaling_laws, statistics
from compare.statistics.scaling_laws import Kind, LinkModel
from compare.statistics.statistics import paired_ratio
from compare.tools.planning import scaling_fit, scaling_report, scaling_rows
from tests.compare.conftest import behave
from tests.support import comparisons
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended, refused
from tests.support.snapshots import FOLDER, Screens

ARGUMENTS = ("scaling", "--frameworks", "left,right", "--modes", "multi_process", "--replicas", "1,2,4")


def test_amdahl_finds_the_serial_fraction_that_made_the_speedups() -> None:
    points = [(replicas, 1.0 / (0.1 + 0.9 / replicas)) for replicas in (1, 2, 4, 8)]
    fraction = scaling_laws.amdahl([points] * 3)
    assert fraction is not None and fraction.n == 9
    assert (fraction.low, fraction.value, fraction.high) == pytest.approx((0.1, 0.1, 0.1))
    assert fraction.speedup(8) == pytest.approx(points[-1][1])


def test_gustafson_finds_the_serial_fraction_that_made_the_speedups() -> None:
    found = scaling_laws.gustafson([[(replicas, replicas - 0.2 * (replicas - 1)) for replicas in (2, 3)]])
    assert found is not None and found.value == pytest.approx(0.2)
    assert found.speedup(64) == pytest.approx(64 - 0.2 * 63)


def as_independent(repeats: list[list[tuple[int, float]]]) -> tuple[float, float]:
    """Planted defect: the interval of the serial fraction as if each point had a serial run of its own."""
    x, y = np.array([(1.0 - 1.0 / r, 1.0 / speedup - 1.0 / r) for each in repeats for r, speedup in each]).T
    slope = float(x @ y / (x @ x))
    error = math.sqrt(float(((y - slope * x) ** 2).sum()) / (len(x) - 1) / float(x @ x))
    half = float(stats.t.ppf(0.975, len(x) - 1)) * error
    return slope - half, slope + half


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "number"), [((2, 4), 5), ((2, 4, 8), 5), ((2, 4, 8), 10)])
def test_the_interval_of_a_serial_fraction_covers_it_as_often_as_stated(sizes: tuple[int, ...], number: int) -> None:
    """Finding J. One look covers in 94 to 96 %; the interval that is shown, which any number of looks may use, in more."""
    draw, truth, trials = np.random.default_rng(5), 0.1, 4000
    critical, shown = float(stats.t.ppf(0.975, number - 1)), statistics.critical(number - 1, number)
    covered = np.zeros(3)
    for _ in range(trials):
        serial = draw.normal(0.0, 0.03, number)
        repeats = [
            [(r, float(np.exp(base - draw.normal(0.0, 0.03)) / (truth + (1.0 - truth) / r))) for r in sizes] for base in serial
        ]
        found, (low, high) = scaling_laws.amdahl(repeats), as_independent(repeats)
        assert found is not None and found.low is not None and found.high is not None
        distance, half = abs(found.value - truth), (found.high - found.low) / 2
        covered += (distance < half * critical / shown, distance < half, low < truth < high)
    one_look, any_look, independent = covered / trials
    assert 0.94 <= one_look <= 0.96
    assert 0.955 <= any_look <= 1.0
    assert independent < 0.94, "the planted defect"


@pytest.mark.parametrize(("speedup", "told"), [(1.6, True), (0.8, False), (2.2, False)])
def test_a_fraction_outside_of_zero_to_one_tells_nothing_of_more_replicas(speedup: float, told: bool) -> None:
    fraction = scaling_laws.amdahl([[(2, speedup)]])
    assert fraction is not None
    law = scaling_fit.ScalingLaw(contestant="pytorch", mode="multi_process", workers=0, fraction=fraction)
    (row,) = scaling_report.laws_table(scaling_fit.ScalingResult(points=[], laws=[law], checks=[])).rows
    assert (row["speedup_64"] is not None) == told


def test_the_interval_of_a_fraction_is_missing_for_fewer_than_three_repeats() -> None:
    alone = scaling_laws.amdahl([[(1, 1.0), (2, 1.8)]] * 2)
    assert alone is not None and alone.low is None and alone.high is None
    noisy = scaling_laws.amdahl([[(2, 1.80), (4, 3.05)], [(2, 1.84), (4, 3.10)], [(2, 1.82), (4, 3.06)], []])
    assert noisy is not None and noisy.low is not None and noisy.high is not None
    assert noisy.low < noisy.value < noisy.high
    assert scaling_laws.amdahl([[(1, 1.0)]]) is None


@pytest.mark.parametrize(
    ("topology", "replicas", "messages", "volume"),
    [
        ("ring", 2, 2, 100.0),
        ("ring", 4, 6, 150.0),
        ("server", 3, 6, 600.0),
        ("all_gather", 4, 3, 300.0),
    ],
)
def test_an_exchange_sends_as_many_messages_and_bytes_as_its_formula(
    topology: scaling_laws.Topology, replicas: int, messages: int, volume: float
) -> None:
    assert scaling_laws.exchange_terms(topology, replicas, 100.0) == (messages, pytest.approx(volume))
    link = LinkModel(name="", alpha_seconds=1.0, beta_seconds_per_byte=0.5)
    assert scaling_laws.exchange_seconds(topology, replicas, 100.0, link) == pytest.approx(messages + volume / 2)
    assert scaling_laws.exchange_seconds(topology, 1, 100.0, link) == 0.0


def test_compute_and_link_are_found_again_from_what_they_make() -> None:
    compute = scaling_laws.fit_compute([(batch, 0.01 + 0.002 * batch) for batch in (16, 32, 64)])
    assert compute is not None
    assert (compute.fixed_seconds, compute.image_seconds) == (pytest.approx(0.01), pytest.approx(0.002))
    truth = LinkModel(name="", alpha_seconds=1e-3, beta_seconds_per_byte=1e-8)
    points = [(replicas, scaling_laws.exchange_seconds("ring", replicas, 4e6, truth)) for replicas in (2, 3, 5)]
    link = scaling_laws.fit_link("ring", 4e6, points)
    assert (link.alpha_seconds, link.beta_seconds_per_byte) == (pytest.approx(1e-3), pytest.approx(1e-8))


def test_a_link_without_runs_costs_nothing() -> None:
    assert scaling_laws.exchange_seconds("ring", 8, 1e6, scaling_laws.fit_link("ring", 1e6, [])) == 0.0


def test_noise_below_zero_counts_in_the_fit_of_a_link() -> None:
    # Half the noise is left out where what is faster than compute counts as nothing: 2e-3 too much in the mean.
    noisy = [(2, 5e-3), (2, -3e-3), (2, 5e-3), (2, -3e-3)]
    link = scaling_laws.fit_link("ring", 1e6, noisy)
    assert scaling_laws.exchange_seconds("ring", 2, 1e6, link) == pytest.approx(1e-3)


def test_of_one_number_of_replicas_all_is_taken_for_bandwidth() -> None:
    # A ring of four sends three quarters over half as much of the payload: alpha alone would say three times the seconds.
    link = scaling_laws.fit_link("ring", 1e6, [(2, 4e-3), (2, 6e-3)])
    assert link.alpha_seconds == 0.0
    assert scaling_laws.exchange_seconds("ring", 4, 1e6, link) == pytest.approx(1.5 * 5e-3)
    assert scaling_laws.fit_link("ring", 1e6, [(2, -1e-3)]).beta_seconds_per_byte == 0.0


@pytest.mark.parametrize("text", ["10gbit", "1e-5", "1e-5,-1e-9", "nan,1", "1,inf", "1e999,1", ""])
def test_a_network_that_is_none_is_refused(text: str) -> None:
    with refused(SpecError, field="--network", received=repr(text), names=["10Gbit", "100Gbit", "nvlink", "ALPHA,BETA"]):
        scaling_laws.parse_link(text)
    assert scaling_laws.parse_link("2e-5,1e-9").alpha_seconds == 2e-5


def test_scaling_runs_every_size_with_its_serial_counterparts(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, ssh_key: Path
) -> None:
    done = convtwins(*ARGUMENTS, "--out", tmp_path / "out", "--sign", ssh_key).succeeded()
    signature = store.read(tmp_path / "out").signature
    assert signature is not None and signature.confirmed and signature.sentence in " ".join(done.stdout.split())
    assert signature.sentence in (tmp_path / "out" / "scaling.html").read_text()
    check_ended(convtwins("scaling", "--stored", tmp_path / "out", "--sign", ssh_key), field="--stored", names=["--sign"])
    rows = {row.id: row.spec for row in store.read_plan(tmp_path / "out").rows if row.contestant == "left"}
    parallel = {name: (row.replicas, row.cores, row.global_batch_size) for name, row in rows.items() if row.mode != "serial"}
    assert parallel == {
        "left-multi_process-2replicas-strong": (2, 2, 64),
        "left-multi_process-2replicas-weak": (2, 2, 128),
        "left-multi_process-4replicas-strong": (4, 4, 64),
        "left-multi_process-4replicas-weak": (4, 4, 256),
    }
    serial = {(row.cores, row.global_batch_size) for row in rows.values() if row.mode == "serial"}
    assert serial == {(1, 64), (1, 32), (1, 16), (2, 64), (2, 128), (4, 64), (4, 256)}
    files = ("tables/scaling.md", "tables/scaling_laws.csv", "plots/scaling.png", "scaling.json")
    assert all((tmp_path / "out" / name).exists() for name in files)
    whole = convtwins("scaling", "--stored", tmp_path / "out", "--full").stdout
    assert "Amdahl" in whole
    _assert_ratios_are_those_of_seconds(tmp_path / "out")


def _assert_ratios_are_those_of_seconds(out: Path) -> None:
    read = convtwins_json("scaling", "--stored", out)
    assert read["made_from"] == store.read(out).made_from
    assert f"{len(read['made_from'])} files, SHA-256 " in (out / "scaling.html").read_text()
    points = {point["id"]: point for point in read["points"]}
    # The fake's seconds are 1 / (1 + 0.5 (replicas - 1) + 0.2 (cores - 1)).
    two, four = points["left-multi_process-2replicas-strong"], points["left-multi_process-4replicas-weak"]
    assert two["speedup_one_core"]["value"] == pytest.approx(1.7)
    assert two["speedup_same_cores"]["value"] == pytest.approx(1.7 / 1.2)
    assert two["efficiency_one_core"] == pytest.approx(0.85)
    assert four["speedup_one_core"]["value"] == pytest.approx(3.1)
    laws = {(law["contestant"], law["fraction"]["law"]): law["fraction"] for law in read["laws"]}
    assert laws["left", "Amdahl"]["n"] == 2 and laws["left", "Gustafson"]["low"] is None
    checks = {(check["contestant"], check["mode"], check["replicas"]) for check in read["checks"]}
    assert checks == {("left", "multi_process", 4), ("right", "multi_process", 4)}
    assert all(check["fitted_on"] == [2] and math.isfinite(check["error"]) for check in read["checks"])


@pytest.mark.slow
def test_more_replicas_than_cores_are_run_and_marked_and_stand_in_no_law(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = convtwins_json(*ARGUMENTS, "--cores", "2", "--out", tmp_path / "out")
    points = {(point["replicas"], point["oversubscribed"], point["status"]) for point in result["points"]}
    assert points == {(2, False, "ok"), (4, True, "ok")}
    assert {law["fraction"]["n"] for law in result["laws"]} == {1}
    assert "oversubscribed" in (tmp_path / "out" / "tables" / "scaling.md").read_text()


@pytest.mark.parametrize(("compression", "growth"), [("none", 1.5), ("int8", 3.0)])
def test_a_link_that_is_fitted_to_two_replicas_is_checked_on_four(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, compression: str, growth: float
) -> None:
    """A ring of four sends three quarters where two send half. What cannot be summed goes around it three times."""
    out = tmp_path / "out"
    convtwins(*ARGUMENTS, "--set", f"communication.compression={compression}", "--kinds", "weak", "--out", out).succeeded()

    def timed(run: RunResult) -> list[EpochRecord]:
        exchange = {1: 0.0, 2: 0.5, 4: 0.9}[run.spec.replicas]
        step = 0.01 * run.spec.per_replica_batch_size / run.spec.cores * run.spec.replicas + exchange
        return [
            comparisons.with_fields(epoch, timed_seconds=step * epoch.timed_images / run.spec.global_batch_size)
            for epoch in run.epochs
        ]

    (check, _) = scaling_fit.read(comparisons.with_runs(store.read(out), epochs=timed)).checks
    assert (check.contestant, check.replicas, check.fitted_on) == ("left", 4, [2])
    assert check.predicted_seconds == pytest.approx(0.64 + growth * 0.5)
    assert check.measured_seconds == pytest.approx(0.64 + 0.9)


@pytest.mark.parametrize("words", [("--project", "8,64", "--network", "100Gbit"), ("--network", "100Gbit")])
def test_the_command_that_projects_is_named(words: tuple[str, ...]) -> None:
    sizes = words[1] if len(words) == 4 else "8,64,512"
    command = f"plan --model MODEL --project {sizes} --network 100Gbit --kinds strong,weak"
    check_ended(convtwins("scaling", *words), field="--project", fix=command)


def test_points_that_rest_on_disturbed_runs_say_so(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convtwins(*ARGUMENTS[:-1], "2", "--out", tmp_path / "out").succeeded()
    stored = store.read(tmp_path / "out")
    base = next(row.id for row in stored.comparison.rows if row.contestant == "left" and row.spec.mode == "serial")
    found = scaling_fit.read(comparisons.with_runs(stored, base, noise=Noise(cores_stolen=0.9)))
    assert {point.in_doubt for point in found.points if point.contestant == "left"} == {True}
    rows = scaling_report.points_table(found).rows
    assert {row["status"] for row in rows if row["contestant"] == "left"} == {"in doubt"}
    for key in ("speedup_one_core", "speedup_same_cores", "speedup_same_batch", "efficiency_one_core", "efficiency_same_batch"):
        assert {row["contestant"]: row[key] == "disturbed" for row in rows if row[key]} == {"left": True, "right": False}
    assert {law.contestant for law in found.laws} == {"right"}


def test_runs_that_did_not_train_the_same_have_no_speedup_and_no_law(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convtwins(*ARGUMENTS[:-1], "2", "--out", tmp_path / "out").succeeded()
    stored = store.read(tmp_path / "out")
    stored = comparisons.with_runs(stored, stored.comparison.rows[0].id, [0], weights_hash="another")
    found = scaling_fit.read(stored)
    assert found.points and not (found.laws or found.checks)
    ratios = [key for key in scaling_fit.ScalingPoint.model_fields if key.startswith(("speedup", "efficiency"))]
    assert len(ratios) == 5 and {getattr(point, key) for point in found.points for key in ratios} == {None}


def test_over_hosts_serial_has_the_first_and_fewer_replicas_fewer_hosts(fake_twins: pytest.MonkeyPatch) -> None:
    """Each has four cores."""
    values = {"hosts": ("a", "b", "c"), "global_batch_size": 48}
    settings = ComparisonSettings(values=values, modes=("multi_process",))
    rows = {
        row.id: row.spec
        for row in scaling_rows.build_rows(settings, [Contestant.plain("left")], sizes=(2, 6), kinds=("strong",))
    }
    assert {name: (row.hosts, row.cores) for name, row in rows.items()} == {
        "left-serial-1cores-batch48": ((), 1),
        "left-multi_process-2replicas-strong": (("a", "b"), 2),
        "left-serial-2cores-batch48": ((), 2),
        "left-serial-1cores-batch24": ((), 1),
        "left-multi_process-6replicas-strong": (("a", "b", "c"), 6),
        "left-serial-4cores-batch48": ((), 4),
        "left-serial-1cores-batch8": ((), 1),
    }


@pytest.mark.slow
def test_every_input_has_a_compute_and_a_check_of_its_own(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = convtwins_json(*ARGUMENTS, "--workers", "0,2", "--kinds", "weak", "--out", out)
    checks = {(check["contestant"], check["workers"], check["kind"]) for check in result["checks"]}
    assert checks == {(framework, workers, "weak") for framework in ("left", "right") for workers in (0, 2)}

    def slower(run: RunResult) -> list[EpochRecord]:
        factor = 1 if run.spec.workers else 10
        return [comparisons.with_fields(epoch, timed_seconds=factor * epoch.timed_seconds) for epoch in run.epochs]

    checked = scaling_fit.read(comparisons.with_runs(store.read(out), epochs=slower)).checks
    predicted = {check.workers: check.predicted_seconds for check in checked if check.contestant == "left"}
    assert predicted[0] > 5 * predicted[2]


@pytest.mark.slow
def test_replicas_on_accelerators_take_no_turns_and_are_the_resource(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convtwins(*ARGUMENTS, "--cores", "2", "--out", tmp_path / "out").succeeded()
    stored = comparisons.with_runs(store.read(tmp_path / "out"), device="cuda: made up")
    points = {point.id: point for point in scaling_fit.read(stored).points}
    four = points["left-multi_process-4replicas-strong"]
    assert not four.oversubscribed and four.speedup_one_core is not None
    assert four.efficiency_one_core == pytest.approx(four.speedup_one_core.value / 4)


def test_a_run_that_fails_is_named_with_its_size_and_its_kind(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__multi_process__4="crash")
    done = convtwins(*ARGUMENTS[:-1], "1,4", "--out", tmp_path / "out")
    failed = [f"left-multi_process-4replicas-{kind}" for kind in ("strong", "weak")]
    assert done.exit_code == 1 and f"Trouble {failed[0]} failed: exit code 1: " in " ".join(done.stdout.split())
    whole = " ".join(convtwins("scaling", "--stored", tmp_path / "out", "--full").stdout.split())
    assert "2 of 12 rows: failed after 1 epoch: exit code 1: " in whole and f"These are: {failed[0]}; {failed[1]}." in whole


def test_a_folder_without_parallel_runs_is_refused(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convtwins("run", "--frameworks", "left", "--modes", "serial", "--no-proof", "--out", tmp_path / "out")
    check_ended(convtwins("scaling", "--stored", tmp_path / "out"), names=["no parallel run"], fix="scaling")


def test_the_first_screen_says_how_much_faster_the_most_replicas_are(screens: Screens) -> None:
    def point(kind: Kind, replicas: int, times: float, *, disturbed: bool = False) -> scaling_fit.ScalingPoint:
        return scaling_fit.ScalingPoint(
            id=f"left-{kind}-{replicas}", contestant="left", mode="multi_process", kind=kind, replicas=replicas, cores=replicas,
            oversubscribed=False, global_batch_size=64, per_replica_batch_size=64 // replicas, workers=0, status="ok",
            disturbed=disturbed, in_doubt=disturbed, images_per_second=None,
            speedup_one_core=paired_ratio([(times * (1 + 0.01 * pair), 1.0) for pair in range(5)]), speedup_same_cores=None,
            speedup_same_batch=None, efficiency_one_core=times / replicas, efficiency_same_batch=None,
        )  # fmt: skip

    points = [point("strong", 2, 1.7), point("strong", 4, 3.1), point("weak", 2, 1.8), point("weak", 4, 9.0, disturbed=True)]
    compared = comparison_report.judge(comparisons.repeated())
    found = scaling_fit.ScalingResult(points=points, laws=[], checks=[])
    report = scaling_report.report(compared, FOLDER, found)
    shown = screens(report)
    assert "3.16 " in shown and "9." not in shown, "no ratio of a disturbed run is shown"

"""Proofs made of fake recordings: what is asked of whom, what is claimed, and what is remembered."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from common import spec
from common.machine import machine
from common.spec import Spec, SpecError
from compare.cli.errors import LaunchError
from compare.proof import ladder, timed_rows, tolerances
from compare.proof.certificate import LOSS_RISES, Proof, Rung, TrainingSetting
from compare.proof.differences import Arrays
from compare.results.store import IN_FLOAT64
from compare.running import contestants, matrix
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.running.twins import Twins
from tests.parity.made_up import Change, FakeTwins
from tests.support import trees
from tests.support.comparisons import with_fields
from tests.support.refusals import refused

FRAMEWORKS = ("pytorch", "tensorflow")
MODES = ("serial", "data_parallel", "multi_process")


def timed(**fields: Any) -> Spec:
    """Of a quarter of the width, as the ladder asks nothing of a model's size. The referee takes its time over a whole one."""
    values: dict[str, Any] = {"model": "simple_cnn", "width": 0.25, "augmentation": {"horizontal_flip": True}}
    return spec.build({**values, **fields})


def prove(
    tmp_path: Path, what: Spec, modes: tuple[str, ...] = ("serial",), said: list[str] | None = None, **options: Any
) -> Proof:
    ways = {name: options.pop(name) for name in ("remember", "keep") if name in options}
    settings: dict[str, Any] = {"replicas": 2, "steps": 5, **options}
    request = ladder.ProofRequest(what, Twins(settings.pop("frameworks", FRAMEWORKS)), modes, **settings)
    progress = (said if said is not None else []).append
    return ladder.prove(request, out=tmp_path / "out", progress=progress, **{"remember": False, **ways})


def losses_of(proof: Proof) -> Rung:
    (found,) = [rung for rung in proof.rungs if rung.name == "5 losses"]
    return found


def mode_verdicts(proof: Proof, modes: Sequence[str] = MODES) -> dict[tuple[str, str], str]:
    return {(name, mode): proof.mode_verdict(name, mode) for name in FRAMEWORKS for mode in modes}


def wrong_loss(arrays: Arrays) -> None:
    arrays["loss"] = arrays["loss"] * (1 + 1e-6)


def rung(status: str, **fields: Any) -> Rung:
    values: dict[str, Any] = {
        "name": "5 losses",
        "number": 5,
        "aspect": "losses",
        "model": "simple_cnn",
        "optimizer": "sgd",
        "precision": "float64",
        "steps": 50,
        "max_relative_difference": 3e-15,
        "step": 7,
        "tolerance": 1e-12,
        "reason": "rounding",
        "status": status,
        "judged_steps": 40,
        "where": "loss from 2 to 1",
    }
    return Rung(**{**values, **fields})


ROUNDED = "rounded-constants: tensorflow computes its GELU (erf) in float32."
SMALL, LARGE = rung("failed", max_relative_difference=9e-5), rung("failed", max_relative_difference=0.7)


@pytest.mark.parametrize(
    ("rungs", "told"),
    [
        ([SMALL], True),
        ([SMALL, SMALL, rung("passed", precision="float32")], True),
        ([SMALL, LARGE], False),
        ([LARGE, SMALL], False),
        ([with_fields(SMALL, precision="float32")], False),
        ([SMALL, with_fields(SMALL, precision="float32")], False),
    ],
)
def test_rounded_constants_are_named_only_where_they_may_explain_all_that_failed(rungs: list[Rung], told: bool) -> None:
    sentence = Proof(rungs=rungs, seconds=1.0, rounded=ROUNDED).sentence
    assert sentence.endswith(f": {ROUNDED}") == told
    assert told or "rounded" not in sentence


def test_a_whole_proof_climbs_every_rung_for_every_mode_and_framework(twins: FakeTwins, tmp_path: Path) -> None:
    proof = prove(tmp_path, timed(), MODES)
    assert proof.verdict == "proved"
    assert {rung.number for rung in proof.rungs} == {*range(1, 9)}
    sixth = {(rung.framework, rung.mode) for rung in proof.rungs if rung.number == 6}
    assert sixth == {(framework, mode) for framework in FRAMEWORKS for mode in MODES[1:]}


@pytest.mark.parametrize("replicas", [2, 3, 4, 5, 6, 7, 8, 9, 16, 64])
def test_rung_6_trains_over_a_last_batch_that_no_mode_can_share_evenly(twins: FakeTwins, tmp_path: Path, replicas: int) -> None:
    prove(tmp_path, timed(), MODES, replicas=replicas)
    for _, what in twins.calls:
        if what.mode != "serial":
            last = (what.data.limit or 0) % what.global_batch_size
            assert what.global_batch_size % replicas == 0
            assert last >= replicas and last % replicas != 0


def test_the_twins_are_held_with_the_timed_batch_and_rate_in_float64_and_with_the_shared_update_rules(
    twins: FakeTwins, tmp_path: Path
) -> None:
    what = timed(
        optimizer={"name": "sgd", "native": True, "weight_decay": 1e-4},
        schedule={"name": "cosine", "scaling": "linear"},
        global_batch_size=512,
    )
    proof = prove(tmp_path, what)
    (_, recorded), *_ = twins.calls
    assert (recorded.global_batch_size, recorded.precision, recorded.mode, recorded.steps) == (512, "float64", "serial", 5)
    assert proof.proved == proof.timed == TrainingSetting(batch_size=512, learning_rate=0.05, images=1258)
    assert not recorded.optimizer.native and recorded.optimizer.weight_decay == 1e-4
    assert (recorded.schedule.name, recorded.schedule.scaling) == ("cosine", "none")
    assert recorded.augmentation.horizontal_flip


def test_batch_norm_is_synchronised_where_modes_are_held_against_serial(twins: FakeTwins, tmp_path: Path) -> None:
    prove(tmp_path, timed(model="mini_xception"), MODES)
    assert {what.batch_norm_statistics for _, what in twins.calls if what.mode != "serial"} == {"synchronised"}


def apart_at(step: int, relative: float) -> Change:
    def change(arrays: Arrays) -> None:
        arrays["loss"][step - 1] *= 1 + relative

    return change


@pytest.mark.parametrize("mode", ["serial", "data_parallel"])
def test_a_model_that_amplifies_rounding_is_held_to_ten_times_its_own(twins: FakeTwins, tmp_path: Path, mode: str) -> None:
    def failed() -> list[str]:
        proof = prove(tmp_path, timed(), ("serial", "data_parallel"))
        return [f"{rung.name} {rung.tolerance:.0e}" for rung in proof.rungs if rung.status == "failed"]

    twins.changes["tensorflow", mode] = apart_at(5, 5e-9)
    if mode == "serial":  # its recording over uneven batches is the same code's
        twins.changes["tensorflow", "data_parallel"] = apart_at(5, 5e-9)
    name = "5 losses" if mode == "serial" else "6 data_parallel against serial"
    plain = f"{name} {tolerances.LOSS_TOLERANCE if mode == 'serial' else tolerances.PARALLEL_TOLERANCE:.0e}"
    assert failed() == [plain]
    twins.reordered["pytorch"] = apart_at(5, 6e-10)
    assert failed() == []
    twins.reordered["pytorch"] = apart_at(5, 4e-10)
    assert failed() == [f"{name} 4e-09"]
    twins.reordered["pytorch"] = apart_at(5, math.nan)
    assert failed() == [plain]


def test_what_a_yardstick_excuses_is_shown_and_proves_nothing(
    twins: FakeTwins, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    twins.changes["tensorflow", "serial"] = apart_at(5, 5e-9)
    twins.reordered["pytorch"] = apart_at(5, 6e-10)
    proof = prove(tmp_path, timed())
    losses = losses_of(proof)
    assert losses.status == "shown" and losses.reason.startswith("shown: ")
    assert proof.verdict == "proved" and losses.max_relative_difference == pytest.approx(5e-9, rel=1e-3)
    assert proof.sentence == snapshot


def test_one_update_alone_is_no_proof(twins: FakeTwins, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Losses that only the yardstick excuses prove nothing, and single steps must stand for them."""
    twins.changes["tensorflow", "serial"] = apart_at(2, 5e-11)
    twins.reordered["pytorch"] = apart_at(2, 6e-12)
    proof = prove(tmp_path, timed())
    losses = losses_of(proof)
    assert losses.status == "shown" and all(rung.status != "failed" for rung in proof.rungs)
    assert {proof.verdict, *(proof.mode_verdict(name, "serial") for name in FRAMEWORKS)} == {"proved"}
    shown = [with_fields(each, status="shown") if ": gradients" in each.name else each for each in proof.rungs]
    without = with_fields(proof, rungs=shown)
    assert without.verdict == "not claimed" and without.sentence == snapshot
    rows = [matrix.build_row(name, Contestant.plain(name), timed()) for name in FRAMEWORKS]
    assert set(timed_rows.row_verdicts(without, Twins(FRAMEWORKS), rows).values()) == {without.verdict} == {"not claimed"}


@pytest.mark.parametrize("status", ["passed", "shown"])
def test_a_mode_whose_losses_are_only_shown_is_claimed_by_its_single_steps_alone(
    status: str, snapshot: SnapshotAssertion
) -> None:
    of_mode = {"framework": "pytorch", "mode": "data_parallel"}
    steps = rung(status, number=8, aspect="gradients", **of_mode)
    others = [rung("passed", number=6, aspect="weights after one step", **of_mode), rung("passed")]
    shown = rung("shown", number=6, **of_mode)
    proof = Proof(rungs=[*others, shown, steps], seconds=0)
    expected = "proved" if status == "passed" else "not claimed"
    assert (proof.verdict, proof.mode_verdict("pytorch", "data_parallel")) == ("proved", expected)
    assert proof.is_one_update("pytorch", "data_parallel") is (status == "shown")
    if status == "shown":
        assert proof.why_one_update("pytorch", "data_parallel") == snapshot


def rises(twins: FakeTwins, below: float) -> Change:
    """As ResNet18's loss with SGD, unless the learning rate is below this."""

    def change(arrays: Arrays) -> None:
        if twins.calls[-1][1].optimizer.learning_rate >= below:
            arrays["loss"] = np.linspace(4.95, 6.14, len(arrays["loss"]))

    return change


@pytest.mark.parametrize(("below", "rate"), [(1.0, 0.05), (0.01, 0.005), (0.001, 0.0005)])
def test_the_free_running_losses_are_of_a_learning_rate_at_which_the_loss_falls(
    twins: FakeTwins, tmp_path: Path, below: float, rate: float
) -> None:
    for name in FRAMEWORKS:
        twins.changes[name, "serial"] = rises(twins, below)
    proof = prove(tmp_path, timed(), steps=50)
    losses = losses_of(proof)
    assert twins.calls[-1][1].optimizer.learning_rate == pytest.approx(rate)
    rates = [what.optimizer.learning_rate for framework, what in twins.calls if (framework, what.mode) == ("pytorch", "serial")]
    assert len(rates) == len(set(rates)), "a recording is made once at each rate"
    assert losses.status == "passed" and (f", at learning rate {rate:g}" in (losses.where or "")) == (rate < 0.05)


def test_a_loss_that_rises_at_every_learning_rate_is_called_no_proof(
    twins: FakeTwins, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    for name in FRAMEWORKS:
        twins.changes[name, "serial"] = rises(twins, 0.0)
    proof = prove(tmp_path, timed(), steps=50)
    losses = losses_of(proof)
    assert losses.status == "shown" and LOSS_RISES in losses.reason
    without_steps = with_fields(proof, rungs=[each for each in proof.rungs if not each.name.startswith("8 ")])
    assert without_steps.verdict == "not claimed" and LOSS_RISES in without_steps.sentence
    assert [proof.sentence, without_steps.sentence] == snapshot


@pytest.mark.parametrize(("below", "ahead"), [(1.0, True), (0.01, False)])
def test_float64_steps_are_judged_while_others_are_recorded_once_the_learning_rate_is_known_to_stay(
    twins: FakeTwins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: float, ahead: bool
) -> None:
    for name in FRAMEWORKS:
        twins.changes[name, "serial"] = rises(twins, below)
    judged: list[tuple[float, int]] = []
    judge, twins.polls = ladder.Ladder._judge, True

    def noted(climbing: Any, steps: Any, recorded: Any) -> Any:
        judged.append((recorded.spec.optimizer.learning_rate, len(twins.stepped)))
        return judge(climbing, steps, recorded)

    monkeypatch.setattr(ladder.Ladder, "_judge", noted)  # no result says when a step was judged
    assert prove(tmp_path, timed(optimizer={"learning_rate": 0.05}), MODES, steps=50).verdict == "proved"
    rate = twins.stepped[-1][1].optimizer.learning_rate
    assert {each for each, _ in judged} == {rate}, "steps at another learning rate were judged"
    at_this_rate = [what.optimizer.learning_rate == rate for _, what in twins.stepped]
    assert judged[0][1] < len(twins.stepped) and any(at_this_rate)
    assert all(at_this_rate) == ahead


def test_a_yardstick_is_measured_only_where_it_could_excuse_what_failed(twins: FakeTwins, tmp_path: Path) -> None:
    def reordered() -> int:
        said: list[str] = []
        prove(tmp_path, timed(), said=said)
        return sum("reordered" in text for text in said)

    assert reordered() == 0
    for step, too_far, amplified in ((2, 2e-10, 9e-11), (3, 2e-8, 9e-9)):
        twins.changes["tensorflow", "serial"] = apart_at(step, too_far)
        assert reordered() == 0
        twins.changes["tensorflow", "serial"] = apart_at(step, amplified)
        assert reordered() == 2
    twins.changes["tensorflow", "serial"] = apart_at(1, 2e-12)
    assert reordered() == 0
    twins.changes["tensorflow", "serial"] = apart_at(4, 1e-9)
    assert reordered() == 2
    twins.reordered["pytorch"] = apart_at(4, 1e-9)
    assert reordered() == 1, "one framework's own distance is enough"


def test_losses_of_a_model_that_amplifies_rounding_from_the_first_step_are_shown(
    twins: FakeTwins, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """As resnet50's at full depth: a hundredfold with each step."""

    def grown(start: float) -> Change:
        def change(arrays: Arrays) -> None:
            arrays["loss"] = arrays["loss"] * (1 + np.minimum(start * 100.0 ** np.arange(len(arrays["loss"])), 0.1))

        return change

    twins.changes["tensorflow", "serial"] = grown(9e-14)
    assert prove(tmp_path, timed()).verdict == "not proved"
    twins.reordered["pytorch"] = grown(3e-14)
    proof = prove(tmp_path, timed())
    losses = losses_of(proof)
    assert (proof.verdict, losses.status) == ("proved", "shown")
    assert losses.max_relative_difference == pytest.approx(9e-8, rel=1e-3) and losses.judged_steps == 4
    assert proof.sentence == snapshot
    twins.changes["tensorflow", "serial"] = grown(9e-13)
    assert prove(tmp_path, timed()).verdict == "not proved"


def test_a_yardstick_that_is_too_short_is_that_of_all_frameworks(twins: FakeTwins, tmp_path: Path) -> None:
    twins.changes["tensorflow", "serial"] = apart_at(5, 5e-9)
    twins.reordered["tensorflow"] = apart_at(5, 6e-10)
    assert losses_of(prove(tmp_path, timed())).status == "shown"


def test_a_mode_that_a_framework_does_not_have_here_is_not_held_and_not_claimed(twins: FakeTwins, tmp_path: Path) -> None:
    missing = {"available": False, "reason": "needs 2 CUDA devices, found 1"}
    modes = twins.described["modes"]
    twins.described["modes"] = {**modes, "data_parallel": {**modes["data_parallel"], **missing}}
    proof = prove(tmp_path, timed(), MODES)
    assert proof.mode_verdict("pytorch", "data_parallel") == "not claimed"
    assert proof.mode_verdict("pytorch", "multi_process") == "proved"


def test_one_framework_alone_is_held_against_itself_only(twins: FakeTwins, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    alone = prove(tmp_path, timed(), MODES, frameworks=("pytorch",))
    assert alone.verdict == "proved"
    assert alone.mode_verdict("pytorch", "serial") == "not claimed"
    nobody = prove(tmp_path, timed(), frameworks=("pytorch",))
    assert (nobody.rungs, nobody.verdict) == ([], "not claimed")
    assert [alone.sentence, nobody.sentence] == snapshot


def test_a_defect_in_one_mode_leaves_the_others_proved(twins: FakeTwins, tmp_path: Path) -> None:
    twins.changes["tensorflow", "multi_process"] = wrong_loss
    proof = prove(tmp_path, timed(), MODES)
    assert [key for key, verdict in mode_verdicts(proof).items() if verdict != "proved"] == [("tensorflow", "multi_process")]
    assert proof.verdict == "not proved"


def test_a_defect_between_the_twins_takes_every_mode_with_it(twins: FakeTwins, tmp_path: Path) -> None:
    twins.changes["tensorflow", "serial"] = twins.changes["tensorflow", "data_parallel"] = wrong_loss
    proof = prove(tmp_path, timed(), ("serial", "data_parallel"))
    assert set(mode_verdicts(proof, MODES[:2]).values()) == {"not proved"}


@pytest.mark.parametrize(
    ("fields", "modes", "word"),
    [
        ({"model": "mini_xception"}, {"data_parallel", "multi_process"}, "BatchNorm"),
        ({"model": "mini_xception", "batch_norm_statistics": "synchronised"}, set[str](), ""),
        ({"model": "simple_cnn"}, set[str](), ""),
        ({"model": "simple_cnn", "schedule": {"scaling": "linear"}}, {"data_parallel", "multi_process"}, "learning rate"),
        ({"model": "simple_cnn", "optimizer": {"native": True}}, set(MODES), "optimizers"),
    ],
)
def test_modes_that_are_another_function_as_timed_are_not_claimed(
    twins: FakeTwins, tmp_path: Path, fields: dict[str, Any], modes: set[str], word: str
) -> None:
    proof = prove(tmp_path, timed(**fields), MODES)
    assert set(proof.not_claimed) == modes
    assert all(word in reason for reason in proof.not_claimed.values())
    assert {mode for mode in MODES if proof.mode_verdict("pytorch", mode) == "not claimed"} == modes
    assert {proof.mode_verdict("pytorch", mode) for mode in set(MODES) - modes} <= {"proved"}


@pytest.mark.parametrize("last", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_owned_parts_are_proved_for_three_replicas_with_equal_parts_in_small_batches(
    twins: FakeTwins, tmp_path: Path, last: int
) -> None:
    """In batches of 15, the smallest of the timed parts has no example of most."""
    owned = {"order": "owned", "owners": 3, "partition": "speed", "speeds": (1.0, 20.0, 20.0)}
    fields = {"input": "dask", "workers": 1, "dask": owned, "global_batch_size": 192, "data": {"limit": 5 * 15 + last}}
    modes = ("serial", "multi_process")
    proof = prove(tmp_path, timed(**fields), modes, replicas=3, steps=20, runs=runs(**fields))
    assert {proof.mode_verdict("pytorch", mode) for mode in modes} == {"proved"} and proof.not_claimed == {}
    small = [what for _, what in twins.calls if what.precision == "float64"]
    assert {what.dask.partition for what in small} == {"balanced"}
    assert {what.data.limit for what in small if what.mode == "serial"} >= {75}


def test_copies_of_a_pipeline_are_held_where_their_micro_batches_have_no_statistics(twins: FakeTwins, tmp_path: Path) -> None:
    modes = ("serial", "pipeline", "hybrid_pipeline")
    held = prove(tmp_path, timed(model="simple_cnn"), modes)
    assert {held.mode_verdict("pytorch", mode) for mode in modes} == {"proved"}
    twins.calls.clear()
    proof = prove(tmp_path, timed(model="mini_xception", batch_norm_statistics="synchronised"), modes)
    assert proof.mode_verdict("pytorch", "pipeline") == "proved"
    assert {what.batch_norm_statistics for _, what in twins.calls if what.mode == "pipeline"} == {"per_replica"}
    assert proof.mode_verdict("pytorch", "hybrid_pipeline") == "not claimed"
    assert "micro-batches" in proof.not_claimed["hybrid_pipeline"]
    assert not [rung for rung in proof.rungs if rung.mode == "hybrid_pipeline"]
    assert held.compared_with == {}
    assert list(proof.compared_with) == ["pipeline"]
    assert "4 parts" in proof.compared_with["pipeline"]


def runs(**fields: Any) -> list[tuple[str, Spec]]:
    return [(name, timed(**{"global_batch_size": 16, **fields})) for name in FRAMEWORKS]


def test_a_switch_takes_the_claim_from_its_framework_alone(twins: FakeTwins, tmp_path: Path) -> None:
    twins.described["options"] = {"graph": {"values": ["function", "xla"], "default": "function"}}
    proof = prove(tmp_path, timed(), MODES, runs=[runs()[0], runs(framework_options={"graph": "xla"})[1]])
    assert mode_verdicts(proof) == {
        (name, mode): "proved" if name == "pytorch" else "not claimed" for name in FRAMEWORKS for mode in MODES
    }


def test_every_level_of_switches_is_proved_in_all_frameworks(twins: FakeTwins, tmp_path: Path) -> None:
    proof = prove(tmp_path, timed(), MODES, runs=[runs(switches="closed")[0], runs()[1]])
    assert [proof.mode_verdict(name, "serial") for name in FRAMEWORKS] == ["proved", "proved"]
    assert proof.levels == ["closed", "usual"] and {what.switches for _, what in twins.calls} == {"closed"}
    stepped = {(name, what.switches) for name, what in twins.stepped if what.mode == "serial"}
    assert stepped == {(name, level) for name in FRAMEWORKS for level in proof.levels}


def test_closed_switches_keep_the_mathematics_and_are_proved_with_them_in_float64(twins: FakeTwins, tmp_path: Path) -> None:
    """They were not claimed, as if a layout or a graph were another function."""
    twins.described["options"] = {"order": {"values": ["rows", "columns"], "default": "rows", "closed": "columns"}}
    proof = prove(tmp_path, timed(), MODES, runs=runs(switches="closed", global_batch_size=8))
    assert set(mode_verdicts(proof).values()) == {"proved"}
    assert proof.levels == ["closed"] and proof.not_claimed == {}
    assert {what.switches for _, what in twins.calls if what.precision == "float64"} == {"closed"}
    twins.changes["tensorflow", "serial"] = wrong_loss
    assert prove(tmp_path, timed(), MODES, runs=runs(switches="closed", global_batch_size=8)).verdict == "not proved"


def test_a_level_that_leaves_fewer_digits_is_not_claimed(twins: FakeTwins, tmp_path: Path) -> None:
    digits = {"values": ["all", "few"], "default": "all", "closed": "few", "reduced": ["few"]}
    twins.described["options"] = {"digits": digits}
    proof = prove(tmp_path, timed(), runs=runs(switches="closed", global_batch_size=8))
    assert proof.mode_verdict("pytorch", "serial") == "not claimed" and proof.levels == ["usual"]


def laid_out(monkeypatch: pytest.MonkeyPatch, modes: Sequence[str] = MODES, **options: Any) -> list[Row]:
    monkeypatch.setattr(machine, "available_cores", lambda: 2)  # a machine may have one
    values = {"model": "simple_cnn", "width": 0.25, "cores": 2, "global_batch_size": 8, "data": {"limit": 20}}
    return matrix.build_rows(values, contestants.resolve(FRAMEWORKS), modes, 2, **options)


def row_verdicts(tmp_path: Path, rows: Sequence[Row]) -> dict[str, str]:
    options: dict[str, Any] = {"out": tmp_path / "out", "progress": str, "steps": 5, "remember": False}
    compared = Twins(FRAMEWORKS)
    return timed_rows.row_verdicts(ladder.prove_rows(rows, compared, replicas=2, **options), compared, rows)


def test_a_row_has_the_verdict_on_its_mode_in_float64_if_the_proof_has_its_switches(
    twins: FakeTwins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its cores and workers: they are no mathematics. `proved` is for its own runs to earn."""
    rows = laid_out(monkeypatch)
    options: dict[str, Any] = {"out": tmp_path / "out", "progress": str, "steps": 5, "remember": False}
    compared = Twins(FRAMEWORKS)
    proof = ladder.prove_rows(rows, compared, replicas=2, **options)
    assert set(timed_rows.row_verdicts(proof, compared, [*rows, *laid_out(monkeypatch, workers=(2,))]).values()) == {IN_FLOAT64}
    closed = laid_out(monkeypatch, levels=("closed",))
    assert {proof.mode_verdict(row.contestant, row.spec.variant) for row in closed} == {"proved"}
    assert set(timed_rows.row_verdicts(proof, compared, closed).values()) == {"not claimed"}


def test_a_searched_level_beside_the_usual_one_is_not_claimed_and_takes_nothing_from_it(
    twins: FakeTwins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = laid_out(monkeypatch, ("serial",), levels=("usual", "best"))
    found = row_verdicts(tmp_path, rows)
    assert {found[row.id] for row in rows if row.spec.switches == "usual"} == {IN_FLOAT64}
    assert {found[row.id] for row in rows if row.spec.switches == "best"} == {"not claimed"}


def test_a_model_too_large_for_the_timed_batch_has_a_smaller_one_with_its_rate_and_the_sentence_says_so(
    twins: FakeTwins, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    what = timed(model="mini_xception", width=1.0, global_batch_size=64, optimizer={"learning_rate": 0.1})
    proof = prove(tmp_path, what, steps=None)
    assert {(each.global_batch_size, each.optimizer.learning_rate) for _, each in twins.calls} == {(16, 0.1 * 16 / 64)}
    assert proof.proved != proof.timed == TrainingSetting(batch_size=64, learning_rate=0.1, images=1258)
    assert proof.sentence == snapshot


def test_a_proof_is_remembered_until_something_that_it_depends_on_changes(twins: FakeTwins, tmp_path: Path) -> None:
    first = prove(tmp_path, timed(), remember=True)
    asked = len(twins.calls)
    again = prove(tmp_path, timed(), remember=True)
    assert (first.remembered, again.remembered, len(twins.calls)) == (False, True, asked)
    assert again.rungs == first.rungs
    for change in ({"seed": 1}, {"optimizer": {"learning_rate": 0.01}}, {"model": "tests.parity.probe", "width": 1.0}):
        assert not prove(tmp_path, timed(**change), remember=True).remembered
    assert not prove(tmp_path, timed(), remember=True, steps=6).remembered
    assert not prove(tmp_path, timed(), MODES, remember=True).remembered
    assert not prove(tmp_path, timed(), remember=True, precision="float32").remembered
    twins.described["versions"] = {"made_up": "1.1"}
    assert not prove(tmp_path, timed(), remember=True).remembered
    twins.described["devices"] = [{"name": "a card", "kind": "cuda"}]
    assert not prove(tmp_path, timed(), remember=True).remembered


def test_what_does_not_touch_the_mathematics_of_the_proof_is_no_new_proof(twins: FakeTwins, tmp_path: Path) -> None:
    prove(tmp_path, timed(), remember=True)
    assert prove(tmp_path, timed(epochs=9, precision="float32"), remember=True).remembered


@pytest.mark.parametrize("folder", ["common", "pytorch_impl", "tensorflow_impl"])
def test_a_changed_byte_of_code_is_a_new_proof(
    twins: FakeTwins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    trees.write(tmp_path, {f"{name}/code.py": "x = 1\n" for name in ("common", "pytorch_impl", "tensorflow_impl")})
    monkeypatch.setattr(machine, "PROJECT_ROOT", tmp_path)  # no test changes the code itself
    prove(tmp_path, timed(), remember=True)
    assert prove(tmp_path, timed(), remember=True).remembered
    (tmp_path / folder / "code.py").write_text("x = 2\n")
    assert not prove(tmp_path, timed(), remember=True).remembered


def test_what_is_claimed_is_never_remembered_from_another_run(twins: FakeTwins, tmp_path: Path) -> None:
    synchronised = timed(model="mini_xception", batch_norm_statistics="synchronised")
    assert prove(tmp_path, synchronised, MODES, remember=True).mode_verdict("pytorch", "data_parallel") == "proved"
    per_replica = prove(tmp_path, timed(model="mini_xception"), MODES, remember=True)
    assert per_replica.remembered
    assert per_replica.mode_verdict("pytorch", "data_parallel") == "not claimed"


@pytest.mark.parametrize("torn", [b"", b'{"rungs": [', b"\xff\xfe", b'{"rungs": 1, "seconds": 2.0}', b'{"seconds": 2.0}'])
def test_a_torn_stored_proof_is_made_again(twins: FakeTwins, tmp_path: Path, torn: bytes) -> None:
    prove(tmp_path, timed(), remember=True)
    (stored,) = (tmp_path / "cache").rglob("*.json")
    whole = stored.read_bytes()
    stored.write_bytes(torn)
    assert not prove(tmp_path, timed(), remember=True).remembered
    assert len(stored.read_bytes()) == pytest.approx(len(whole), abs=30)


def test_a_proof_that_failed_is_not_remembered(twins: FakeTwins, tmp_path: Path) -> None:
    twins.changes["tensorflow", "serial"] = wrong_loss
    assert prove(tmp_path, timed(), remember=True).verdict == "not proved"
    assert not list((tmp_path / "cache").rglob("*.json"))
    twins.changes.clear()
    assert prove(tmp_path, timed(), remember=True).verdict == "proved"


def test_a_twin_that_cannot_record_is_named_with_its_last_words(twins: FakeTwins, tmp_path: Path) -> None:
    twins.code = -9
    with refused(LaunchError, names=["pytorch", "serial and 1 more", "SIGKILL", "See"]) as caught:
        prove(tmp_path, timed())
    assert str(caught.error).endswith("RuntimeError: no more memory")


def test_a_recording_of_an_earlier_proof_is_never_judged(twins: FakeTwins, tmp_path: Path) -> None:
    prove(tmp_path, timed(), keep=True)
    twins.is_idle = True
    with refused(LaunchError, names=["pytorch", "serial", "exit code 0", "single-steps-float64-1-parts-pytorch.safetensors"]):
        prove(tmp_path, timed())


def test_a_model_that_does_not_take_the_images_is_refused(twins: FakeTwins, tmp_path: Path) -> None:
    with refused(SpecError, field="data.image_size", names=["32", "mini_xception"]):
        prove(tmp_path, timed(model="mini_xception", data={"image_size": 64}))


def test_the_verdict_needs_something_passed_and_nothing_failed() -> None:
    assert Proof(rungs=[], seconds=0).verdict == "not claimed"
    assert Proof(rungs=[rung("shown")], seconds=0).verdict == "not claimed"
    assert Proof(rungs=[rung("passed"), rung("shown", aspect="logits")], seconds=0).verdict == "proved"
    assert Proof(rungs=[rung("passed"), rung("shown", max_relative_difference=0.2)], seconds=0).verdict == "not claimed"
    assert Proof(rungs=[rung("passed"), rung("failed")], seconds=0).verdict == "not proved"


FAILED = rung("failed", name="3 gradients", number=3, aspect="gradients", max_relative_difference=math.inf)
FOUND: dict[str, list[Rung]] = {
    "float64": [rung("passed"), rung("passed", max_relative_difference=2e-13), rung("shown", aspect="logits")],
    "float32": [rung("passed", precision="float32", max_relative_difference=1e-7)],
    "one update": [rung("passed"), rung("shown", max_relative_difference=0.2)],
    "failed": [rung("passed"), FAILED, rung("failed")],
    "failed at a place": [with_fields(FAILED, framework="pytorch", where="conv1.kernel, buffer")],
}


@pytest.mark.parametrize("name", FOUND)
def test_sentences_say_what_was_found(name: str, snapshot: SnapshotAssertion) -> None:
    assert Proof(rungs=FOUND[name], seconds=0).sentence == snapshot


def test_a_stored_proof_reads_back_as_it_was() -> None:
    proof = Proof(rungs=[rung("passed"), rung("passed", mode="data_parallel", framework="pytorch")], seconds=1.5)
    assert Proof.model_validate_json(proof.model_dump_json()) == proof


def test_recordings_stay_only_where_they_are_evidence(twins: FakeTwins, tmp_path: Path) -> None:
    assert prove(tmp_path / "right", timed()).verdict == "proved"
    assert not list((tmp_path / "right").rglob("*.safetensors")) and list((tmp_path / "right").rglob("serial-pytorch.json"))

    twins.changes["tensorflow", "serial"] = wrong_loss
    assert prove(tmp_path / "wrong", timed()).verdict == "not proved"
    assert list((tmp_path / "wrong").rglob("serial-pytorch.safetensors"))

"""Whether losses that grow apart are rounding: judged by copies of the run that start one unit in the last place apart."""

import numpy as np
import pytest

from compare.execution.store import Stored, Trajectories
from compare.judgement import growth, sameness, summary
from tests.compare import made

STEPS = 20
GROWN = 1e-7 * 1.6 ** np.arange(STEPS)
"""What rounding makes of one unit in the last place here: 1e-7 at step 1, 7e-4 at step 20."""


def losses(apart: float = 0.0) -> list[float]:
    return (np.linspace(2.3, 1.0, STEPS) * (1 + apart * GROWN)).tolist()


def copies(factor: float = 2.0) -> Trajectories:
    each = [losses(), losses(factor), losses(-factor)]
    return Trajectories(cores=2, steps=STEPS, losses={"pytorch": each, "tensorflow": each})


def planted(found: list[float], first_step: int = 2) -> list[float]:
    """Wrong by 17 to 44 % from a step on."""
    wrong = np.linspace(1.17, 1.44, STEPS + 1 - first_step)
    return [*found[: first_step - 1], *(np.array(found[first_step - 1 :]) * wrong)]


def stored(theirs: dict[int, list[float]], with_copies: bool = True) -> Stored:
    """PyTorch and TensorFlow on one core and on two. `theirs`: TensorFlow's losses by number of cores."""
    rows = [made.row(name, cores=cores) for name in ("pytorch", "tensorflow") for cores in (1, 2)]
    runs = {
        row.id: {
            0: made.good(row, 1.0).model_copy(
                update={"step_losses": losses() if row.contestant == "pytorch" else theirs[row.spec.cores]}
            )
        }
        for row in rows
    }
    record = made.ProofRecord(verdict="proved", sentence="", trajectories=copies() if with_copies else None)
    return Stored(comparison=made.comparison(rows, proof=record), runs=runs, set_aside=[])


def said(of: Stored) -> list[str]:
    return [each for each in sameness.sentences(of, summary.summarize(of)) if each.startswith(" ")]


def test_losses_within_the_distance_of_the_copies_are_rounding() -> None:
    one, two, why, last = said(stored({1: losses(0.5), 2: losses(3.0)}))
    assert one.startswith(" serial, 1 core: the losses differ by 5.0e-08 at step 1, 8.0e-08 at step 2, ")
    assert two.startswith(" serial, 2 cores: the losses differ by 3.0e-07 at step 1, 4.8e-07 at step 2, ")
    assert one.endswith("3.8e-04 at step 20.") and two.endswith("at step 20.")
    assert why.startswith(" Both rows: Rounding explains this. Copies of the run differ as much (limit ")
    assert why.endswith(
        " Copies are the serial run with weights that start one unit in the last place apart, 2 in each framework."
    )
    assert last == " So rounding alone can make the scores differ in the end."


def test_each_row_shows_its_own_growth() -> None:
    """Not that of the row with most cores for all."""
    one, two = said(stored({1: losses(20.0), 2: losses(0.0)}))
    assert "2.0e-06 at step 1" in one and "0.0e+00 at step 1" in two
    assert "Not shown to be rounding" in one and two.count("Rounding explains this.") == 1


@pytest.mark.parametrize("cores", [1, 2])
def test_losses_made_wrong_from_step_2_on_are_not_called_rounding(cores: int) -> None:
    of = stored({1: losses(0.5), 2: losses(0.5)} | {cores: planted(losses(0.5))})
    rows = said(of)
    wrong = rows[cores - 1]
    assert "NOT ROUNDING: from step 2 on the losses differ by more than copies do (1.5e-01 at step 2, limit 1.0e-05)" in wrong
    assert "rounding" not in wrong.replace("NOT ROUNDING", "") and not any("in the end" in each for each in rows)
    assert not sameness.is_comparable(of, summary.summarize(of))
    assert {each.pays for each in summary.summarize(of)} <= {None, "not comparable"}
    assert "NOT ROUNDING" not in rows[2 - cores]


@pytest.mark.parametrize("first_step", range(2, STEPS + 1))
def test_a_wrong_loss_is_named_from_its_first_step_wherever_it_begins(first_step: int) -> None:
    found = growth.between(losses(), planted(losses(0.5), first_step), copies())
    assert found.beyond == first_step and "Rounding explains" not in found.explained


@pytest.mark.parametrize("first_step", [2, 4, 10])
def test_losses_far_beyond_what_copies_do_are_other_training_wherever_they_begin(first_step: int) -> None:
    assert growth.between(losses(), planted(losses(0.5), first_step), copies()).is_other_training


def test_a_jump_as_a_turned_relu_makes_it_is_not_shown_to_be_rounding_and_refutes_nothing() -> None:
    quiet = Trajectories(cores=2, steps=STEPS, losses={name: [losses(), losses()] for name in ("a", "b")})
    jumped = [loss * (1.02 if step >= 9 else 1.0) for step, loss in enumerate(losses())]
    found = growth.between(losses(), jumped, quiet)
    assert found.beyond == 10 and not found.is_other_training


def test_a_difference_below_the_floor_is_called_rounding_only_where_copies_differ_as_much() -> None:
    near = Trajectories(cores=2, steps=STEPS, losses={name: [losses(), losses(1e-3)] for name in ("a", "b")})
    assert growth.between(losses(), losses(1e-3), near).explained.startswith("Rounding explains this. It is less than 1e-05,")
    found = growth.between(losses(), [each * (1 + 3e-7) for each in losses()], near).explained
    assert found.startswith("Less than 1e-05, but 3.0e-07 at step 1 is more than twice 1.0e-10, the distance of copies")
    assert "ounding" not in found
    grown = Trajectories(cores=2, steps=STEPS, losses={name: [losses(), planted(losses(1e-3), 9)] for name in ("a", "b")})
    assert "But" not in growth.between(losses(), losses(1e-3), grown).explained
    found = growth.between(losses(), [each * (1 + 9e-6) for each in losses()], grown).explained
    assert " But 9.0e-06 at step 1 is more than twice the 1.0e-10 of copies there. Less than 1e-05 is too little" in found


def test_without_copies_nothing_is_called_rounding() -> None:
    *_, last = said(stored({1: losses(0.5), 2: losses(0.5)}, with_copies=False))
    assert last == " Both rows: No copies of the run were made: nothing says whether this is rounding."


def test_steps_that_no_copy_followed_are_said() -> None:
    short = Trajectories(cores=2, steps=5, losses={name: [losses()[:5], losses(2.0)[:5]] for name in ("a", "b")})
    found = growth.between(losses(), losses(1.0), short)
    assert found.judged == 5 and found.shown.endswith("at step 5, later by up to 7.6e-04")
    assert found.explained.endswith("Copies were followed for 5 steps. Later losses are not judged.")


def test_losses_that_are_wrong_only_after_the_copies_are_called_no_rounding() -> None:
    short = Trajectories(cores=2, steps=5, losses={name: [losses()[:5], losses(2.0)[:5]] for name in ("a", "b")})
    found = growth.between(losses(), planted(losses(1.0), 8), short)
    later = found.differences[5:].max()
    assert later > 0.1 and found.shown.endswith(f"later by up to {later:.1e}")
    assert found.explained.endswith("Later losses are not judged.")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_no_number_is_not_rounding(bad: float) -> None:
    found = growth.between(losses(), [*losses()[:-1], bad], copies())
    assert found.is_other_training and found.explained == f"NOT ROUNDING: a loss of step {STEPS} is no number."
    short = Trajectories(cores=2, steps=5, losses={name: [losses()[:5], losses(2.0)[:5]] for name in ("a", "b")})
    later = growth.between(losses(), [*losses()[:-1], bad], short)
    assert later.is_other_training and "NOT ROUNDING" in later.explained and "not judged" not in later.explained


def test_the_distance_of_copies_is_that_of_the_pair_farthest_apart_so_far() -> None:
    wide = Trajectories(
        cores=1, steps=3, losses={"a": [[1.0, 1.0, 1.0], [1.0, 1.1, 1.0], [1.0, 0.9, 1.0]], "b": [[1.0] * 3] * 3}
    )
    np.testing.assert_allclose(growth.distances(wide), [0.0, 0.2 / 1.1, 0.2 / 1.1])


def test_what_copies_do_not_explain_is_sent_to_single_steps_only_where_there_are_some() -> None:
    apart = stored({1: losses(20.0), 2: losses(0.0)})
    assert apart.comparison.proof is not None
    said_first = said(apart)[0]
    assert (
        "Copies are the serial run with weights that start one unit in the last place apart, 2 in each framework." in said_first
    )
    assert "No single float32 step was compared with the referee" in said_first and "Single float32 steps" not in said_first
    assert "The proof in float64 says that both compute the same, which speaks for rounding." in said_first
    assert "run with --precision float64" in said_first
    for states, which, then in (
        (["passed"] * 2, "all 2 rungs passed.", "Compare scores over several seeds."),
        (["passed", "shown", "shown"], "of 3 rungs, 1 passed and 2 shown.", "which steps differ, and by how much."),
    ):
        rungs = [{"name": "8 one step in float32: weights", "status": each} for each in states]
        with_steps = apart.comparison.model_copy(update={"proof": apart.comparison.proof.model_copy(update={"rungs": rungs})})
        last = said(apart.model_copy(update={"comparison": with_steps}))[0]
        assert which in last and last.endswith(then)
    unproved = apart.comparison.model_copy(
        update={"proof": apart.comparison.proof.model_copy(update={"verdict": "not claimed"})}
    )
    found = said(apart.model_copy(update={"comparison": unproved}))[0]
    assert "The proof in float64 does not say that both compute the same." in found and "speaks for" not in found


def test_scores_that_a_single_step_refutes_are_not_explained_by_rounding() -> None:
    apart = stored({1: losses(0.5), 2: losses(3.0)})
    assert apart.comparison.proof is not None
    where = "4 of 32 predictions in evaluation"
    rung = {"name": "8 one step in float32: scores", "status": "failed", "framework": "tensorflow", "where": where}
    proof = apart.comparison.proof.model_copy(update={"rungs": [rung]})
    last = said(apart.model_copy(update={"comparison": apart.comparison.model_copy(update={"proof": proof})}))[-1]
    assert last.startswith(" The losses do not explain the scores:") and f"tensorflow, serial: {where}" in last


def test_accuracies_that_differ_where_losses_agree_are_said_to_be_unexplained() -> None:
    same = stored({1: losses(), 2: losses()})
    wrong = same.runs["tensorflow-serial-2"][0]
    same.runs["tensorflow-serial-2"][0] = wrong.model_copy(update={"test": made.score(0.6, 0.6)})
    last = said(same)[-1]
    agree = " The losses agree within 0.0e+00 at every step. The test scores differ by"
    assert last == f"{agree} 10 of 100 images (serial). The losses do not explain the scores."
    for accuracy, images in ((0.69, 1), (0.68, 2)):  # ties alone can do that, though 2 are more than 1 %
        same.runs["tensorflow-serial-2"][0] = wrong.model_copy(update={"test": made.score(accuracy, 0.6)})
        tied = f"{agree} {images} of 100 images (serial). Rounding can do that where two logits of an image are nearly equal."
        assert said(same)[-1] == tied
    same.runs["tensorflow-serial-2"][0] = wrong.model_copy(update={"test": made.score(0.6, 0.6)})
    half = same.runs["tensorflow-serial-2"][0]
    same.runs["tensorflow-serial-2"][0] = half.model_copy(update={"step_losses": half.step_losses[:10]})
    assert said(same)[-1] == " So rounding alone can make the scores differ in the end."


def test_losses_that_an_old_checkpoint_did_not_keep_are_said_to_be_not_judged() -> None:
    of = stored({1: losses(0.5), 2: []})
    assert not any("not judged" in each for each in said(of))
    of.runs["tensorflow-serial-2"][0] = of.runs["tensorflow-serial-2"][0].model_copy(update={"resumes": 1})
    why = "a run was resumed from a checkpoint that lacks them."
    assert f" serial, 2 cores: the losses after the first step are not judged: {why}" in said(of)

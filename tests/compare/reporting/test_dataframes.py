from compare.reporting import dataframes
from tests.support import comparisons


def test_every_run_and_every_epoch_has_one_line_with_the_stored_numbers() -> None:
    stored = comparisons.troubled()
    results = [result for repeats in stored.runs.values() for result in repeats.values()]
    runs, epochs = dataframes.runs(stored), dataframes.epochs(stored)
    assert len(runs) == len(results)
    assert sorted(runs["status"]) == sorted(result.status for result in results)
    assert len(epochs) == sum(len(result.epochs) for result in results)
    assert sorted(epochs["train_loss"]) == sorted(record.train.loss for result in results for record in result.epochs)
    assert not epochs.duplicated(["run", "repeat", "epoch"]).any()


def test_a_profiled_run_has_its_pieces_in_its_line() -> None:
    runs = dataframes.runs(comparisons.profiled()).set_index("run")
    assert runs["forward_seconds"].dropna().to_dict() == {"pytorch-data_parallel-2": 0.008}


def test_a_comparison_without_any_run_gives_empty_frames() -> None:
    stored = comparisons.with_fields(comparisons.repeated(), runs={})
    assert dataframes.runs(stored).empty and dataframes.epochs(stored).empty

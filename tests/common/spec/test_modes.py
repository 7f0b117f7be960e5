from __future__ import annotations

from collections.abc import Callable

import pytest

from common import spec
from common.spec import MODES, Mode, SpecError

RING_OF_TWO = Mode(
    name="ring_of_two",
    variant="ring_of_two",
    divides=frozenset({"batch"}),
    processes="one",
    needs="two devices",
    not_serial_because="it is made up",
)


@pytest.mark.parametrize(
    ("trait", "variants"),
    [
        (lambda mode: not mode.is_parallel, {"serial"}),
        (
            lambda mode: mode.divides_batch,
            {
                *("data_parallel", "multi_process", "sharded_data_parallel", "parameter_server", "parameter_server_async"),
                *("model_averaging", "hybrid_tensor", "hybrid_pipeline"),
            },
        ),
        (
            lambda mode: mode.divides_model,
            {
                *("sharded_data_parallel", "model_parallel", "tensor_parallel", "pipeline", "pipeline_1f1b", "pipeline_async"),
                *("hybrid_tensor", "hybrid_pipeline"),
            },
        ),
        (lambda mode: mode.is_nested, {"hybrid_tensor", "hybrid_pipeline"}),
        (
            lambda mode: mode.runs_across_hosts,
            {"multi_process", "parameter_server", "parameter_server_async", "model_averaging"},
        ),
        (
            lambda mode: mode.can_own_images,
            {"serial", "multi_process", "parameter_server", "parameter_server_async", "model_averaging"},
        ),
        (lambda mode: mode.exchange == "ring", {"multi_process"}),
        (lambda mode: mode.has_server, {"parameter_server", "parameter_server_async"}),
        (lambda mode: mode.compresses, {"serial", "data_parallel", "multi_process", "parameter_server"}),
        (lambda mode: mode.resumes, {"serial", "data_parallel", "multi_process", "sharded_data_parallel"}),
        (lambda mode: mode.is_elastic, {"multi_process", "sharded_data_parallel"}),
        (lambda mode: mode.cuts_batches, {"pipeline", "pipeline_1f1b", "pipeline_async", "hybrid_pipeline"}),
        (lambda mode: mode.updates_each_micro_batch, {"pipeline_async"}),
        (
            lambda mode: mode.has_own_rule,
            {"parameter_server", "parameter_server_async", "sharded_data_parallel", "pipeline_async"},
        ),
        (lambda mode: mode.not_serial_because, {"model_averaging", "parameter_server_async", "pipeline_async"}),
        (
            lambda mode: mode.no_global_statistics_because,
            {"pipeline", "pipeline_1f1b", "pipeline_async", "hybrid_pipeline", "parameter_server_async"},
        ),
        (lambda mode: mode.processes == "one", {"serial", "data_parallel"}),
    ],
)
def test_each_trait_holds_for_these_modes(trait: Callable[[Mode], object], variants: set[str]) -> None:
    assert set(MODES.variants(lambda mode: bool(trait(mode)))) == variants


@pytest.mark.parametrize("variant", MODES)
def test_a_spec_of_each_variant_has_its_traits(variant: str) -> None:
    values = spec.with_variant({"pipeline": {"schedule": "1f1b"}, "parameter_server": {"staleness": None}}, variant, 2)
    assert spec.build(values).traits == MODES[variant]


def test_a_registered_mode_is_listed_and_built() -> None:
    with MODES.extended(RING_OF_TWO):
        run = spec.build(spec.with_variant({}, "ring_of_two", 2))
        assert (run.variant, run.data_replicas, run.not_serial_because) == ("ring_of_two", 2, "it is made up")
        with pytest.raises(SpecError, match=r"Use serial, .* or ring_of_two"):
            spec.build({"mode": "ring_of_three"})
    assert "ring_of_two" not in MODES
    with pytest.raises(SpecError, match="mode is unknown"):
        spec.build({"mode": "ring_of_two"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"replicas": 1}, "at least 2 in mode ring_of_two"),
        ({"hosts": ["one", "two"]}, "hosts are for multi_process, parameter_server or model_averaging"),
        ({"least_replicas": 1}, "least_replicas is for multi_process or sharded_data_parallel"),
        ({"communication": {"compression": "int8"}}, "compression is for data_parallel, multi_process or parameter_server"),
        ({"input": "dask", "workers": 1, "dask": {"order": "owned", "owners": 2}}, "dask.order owned is for serial"),
    ],
)
def test_a_registered_mode_is_refused_what_it_has_no_trait_for(fields: dict[str, object], message: str) -> None:
    with MODES.extended(RING_OF_TWO), pytest.raises(SpecError, match=message):
        spec.build({"mode": "ring_of_two", "replicas": 2, "cores": 1, **fields})


def test_a_mode_that_a_framework_lacks_is_not_available() -> None:
    with MODES.extended(RING_OF_TWO):
        run = spec.build({"mode": "ring_of_two", "replicas": 2})
        refusal = spec.check_against(run, {"framework": "pytorch", "options": {}, "modes": {}})
    assert refusal == "not available: pytorch has no mode ring_of_two"


def test_the_word_of_a_mode_is_registered_once() -> None:
    with pytest.raises(ValueError, match="must be new"), MODES.extended(MODES["serial"]):
        pass

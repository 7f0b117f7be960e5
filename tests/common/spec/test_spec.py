import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from common import spec
from common.errors import UserError
from common.machine import machine
from common.spec import Spec, SpecError, written
from common.spec.errors import FOREIGN_NAMES
from tests.support.refusals import check, refused

GROUPS = ("data", "optimizer", "schedule", "augmentation", "paths")
COMPRESSING = ("data_parallel", "multi_process", "parameter_server")
OF_MODES = ("parameter_server", "pipeline", "hybrid")
"""Groups that a word of --modes may set a field of."""


# Valid specs, built so that every pair of fields that constrain each other fits.


paths = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


ELASTIC: dict[str, Any] = {"mode": "multi_process", "replicas": 4, "least_replicas": 1, "global_batch_size": 32}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    word = draw(st.sampled_from(tuple(spec.MODES)))
    replicas = 1 if word == "serial" else draw(st.integers(2, 8))
    given_input = draw(st.sampled_from(spec.INPUTS))
    positive = st.floats(1e-9, 10, exclude_min=True)
    length = draw(st.sampled_from(["epochs", "steps"]))
    values = {
        "model": draw(st.sampled_from((*spec.MODELS, "mine.net", "a.b.c"))),
        "data": {
            "source": draw(paths.filter(bool)),
            "image_size": draw(st.none() | st.integers(1, 4096)),
            "limit": draw(st.none() | st.integers(1, 10**6)),
            "seed": draw(st.none() | st.integers(0, 2**63 - 1)),
        },
        "optimizer": {
            "name": draw(st.sampled_from(["sgd", "adam"])),
            "learning_rate": draw(positive),
            "momentum": draw(st.floats(0, 1, exclude_max=True)),
            "beta_2": draw(st.floats(0, 1, exclude_max=True)),
            "native": draw(st.booleans()) and word in ("serial", "data_parallel", "tensor_parallel"),
        },
        "schedule": {
            "name": draw(st.sampled_from(["constant", "step", "exponential", "cosine"])),
            "gamma": draw(st.floats(0, 1, exclude_min=True)),
            "warmup_steps": draw(st.integers(0, 1000)),
            "scaling": draw(st.sampled_from(["none", "linear", "sqrt"])),
        },
        "loss": draw(st.sampled_from(["sparse_categorical_crossentropy", "categorical_crossentropy"])),
        length: draw(st.integers(1, 1000)),
        "global_batch_size": replicas * draw(st.integers(1, 64)),
        "precision": draw(st.sampled_from(["float32", "float64"])),
        "input": given_input,
        "workers": 0 if given_input == "inline" else draw(st.integers(1, 8)),
        "cores": draw(st.integers(1, machine.available_cores())),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "augmentation": {"horizontal_flip": draw(st.booleans()), "shift_px": draw(st.integers(0, 16))},
        "batch_norm_statistics": draw(st.sampled_from(["per_replica", "synchronised"])),
        "prefetch": draw(st.integers(1, 8)),
        "switches": draw(st.sampled_from(spec.LEVELS)),
        "framework_options": draw(st.dictionaries(st.text(), st.booleans() | st.integers() | st.text())),
        "paths": {"cache_dir": draw(st.none() | paths)},
    }
    return spec.with_variant(values, word, replicas)


@pytest.mark.parametrize(("own", "divided_by"), [(None, 7), (0, 0), (3, 3)])
def test_data_are_divided_by_their_own_seed_where_they_have_one(own: int | None, divided_by: int) -> None:
    assert spec.build({"seed": 7, "data": {"seed": own}}).split_seed == divided_by


@pytest.mark.parametrize(("elsewhere", "field"), FOREIGN_NAMES.items())
def test_a_name_of_other_frameworks_stands_for_a_field_that_there_is(elsewhere: str, field: str) -> None:
    group: Any = Spec
    for part in field.split("."):
        group = group.model_fields[part].annotation
    assert elsewhere not in Spec.model_fields


@pytest.mark.parametrize("word", spec.MODES)
def test_a_word_of_modes_makes_a_run_of_that_variant(word: str) -> None:
    made = spec.build(spec.with_variant({"global_batch_size": 24}, word, 3))
    copies = {"serial": 1, "model_parallel": 1, "tensor_parallel": 1, "pipeline": 1}.get(made.mode, 3)
    assert (made.variant, made.data_replicas, made.per_replica_batch_size) == (word, copies, 24 // copies)
    assert made.replicas == (1 if word == "serial" else 6 if made.mode == "hybrid" else 3)
    departs = word in ("parameter_server_async", "pipeline_async", "model_averaging")
    assert (made.not_serial_because is not None) == departs


@pytest.mark.parametrize("word", spec.MODES)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("server", [{"updates": "asynchronous", "staleness": 2}, {"staleness": 2}])
def test_a_word_of_modes_means_the_same_whatever_the_spec_has_set(word: str, schedule: str, server: dict[str, Any]) -> None:
    made = spec.build(spec.with_variant({"pipeline": {"schedule": schedule}, "parameter_server": server}, word, 2))
    assert made.variant == word
    assert made.parameter_server.staleness == (None if word == "parameter_server" else 2)


@pytest.mark.parametrize(
    ("word", "fields", "received", "fix", "names"),
    [
        ("hybrid", {"replicas": 2}, "2 and 2", 4, ["mode hybrid", "twice hybrid.inner_replicas"]),
        ("hybrid", {"replicas": 5}, "5 and 2", 4, ["mode hybrid", "twice hybrid.inner_replicas"]),
        ("parameter_server", {"parameter_server.staleness": 1}, 1, "parameter_server.updates", ["asynchronous"]),
        ("parameter_server", {"optimizer.native": True}, "true", "false", ["mode parameter_server"]),
        ("sharded_data_parallel", {"optimizer.native": True}, "true", "false", ["mode sharded_data_parallel"]),
        ("sharded_data_parallel", {"accumulation": 2}, 2, 1, ["mode sharded_data_parallel"]),
        ("pipeline", {"accumulation": 2}, 2, [1, "pipeline.micro_batches"], ["mode pipeline"]),
        *(
            (word, {"communication.compression": "int8"}, f"int8 in mode {word}", "none", COMPRESSING)
            for word in ("sharded_data_parallel", "model_averaging", "parameter_server_async")
        ),
    ],
)
def test_fields_that_a_mode_cannot_use_are_refused(
    word: str, fields: dict[str, Any], received: object, fix: object, names: Sequence[str]
) -> None:
    values: dict[str, Any] = {"mode": word, "replicas": 2}
    if word == "parameter_server_async":
        values |= {"mode": "parameter_server", "parameter_server": {"updates": "asynchronous"}}
    with refused(SpecError, field=next(iter(fields)), received=received, fix=fix, names=names):
        spec.build(spec.overlay(values, fields))


@given(specs())
def test_a_spec_holds_the_values_that_it_was_given_and_survives_json_and_yaml(values: dict[str, Any]) -> None:
    built = spec.build(values)
    assert spec.from_json(built.to_json()) == built
    assert spec.build(json.loads(built.to_json())) == built
    dumped = built.model_dump()
    assert spec.build(yaml.safe_load(yaml.safe_dump(dumped, allow_unicode=False))) == built
    for name, value in values.items():
        assert (dumped[name] | value if name in (*GROUPS, *OF_MODES) else value) == dumped[name]


@given(specs(), st.sampled_from([(), *((group,) for group in GROUPS)]), st.from_regex(r"[a-z_]{1,12}", fullmatch=True))
def test_unknown_keys_are_refused_at_any_depth(values: dict[str, Any], parents: tuple[str, ...], key: str) -> None:
    holder = values
    known: Any = Spec
    for parent in parents:
        holder, known = holder[parent], known.model_fields[parent].annotation
    if key in known.model_fields:
        return
    holder[key] = 1
    with refused(SpecError, received=1) as caught:
        spec.build(values)
    assert caught.error.field == ".".join((*parents, key))


def test_the_smallest_spec_is_two_epochs_of_digits() -> None:
    built = spec.build({})
    length = (built.epochs, built.steps)
    assert (built.model, built.data.source, built.mode, *length) == ("simple_cnn", "digits", "serial", 2, None)
    assert built.cores == machine.available_cores()
    assert spec.build({"epochs": None, "steps": None}).epochs == 2
    assert spec.build({"steps": 5}).epochs is None


@pytest.mark.parametrize(
    "values",
    [
        {"model": "my_models.wide_net"},
        {"epochs": "3"},
        {"mode": "multi_process", "replicas": 3, "global_batch_size": 99},
        {"seed": 2**63 - 1},
        {"data": {"source": "a folder/of images"}},
        {"data": {"limit": 1, "image_size": 4096}},
        {"optimizer": {"name": "adam", "learning_rate": 1e-3, "momentum": 0}},
        {"schedule": {"gamma": 1.0}},
        {"framework_options": {"anything": [1, "two"]}},
    ],
)
def test_a_right_value_at_the_edge_or_of_another_form_is_accepted(values: dict[str, Any]) -> None:
    assert isinstance(spec.build(values), Spec)


@pytest.mark.parametrize(
    ("values", "field", "received", "fix"),
    [
        ({"model": "simple_cn"}, "model", "'simple_cn'", ["did you mean simple_cnn?", "package.module"]),
        ({"model": "../net"}, "model", "'../net'", "package.module"),
        ({"model": "wide"}, "model", "'wide'", ["package.module", "dot", "folder"]),
        ({"mode": "seriel"}, "mode", "'seriel'", "did you mean serial?"),
        ({"input": "worker"}, "input", "'worker'", "did you mean workers?"),
        ({"epochs": 1, "steps": 1}, "epochs and steps", "1 and 1", "one"),
        ({"replicas": 2}, "replicas", 2, 1),
        ({"mode": "data_parallel"}, "replicas", 1, 2),
        ({"mode": "data_parallel", "replicas": 3, "global_batch_size": 100}, "global_batch_size", "100 over 3", [99, 102]),
        ({"mode": "multi_process", "replicas": 4, "global_batch_size": 2}, "global_batch_size", "2 over 4", 4),
        ({"input": "workers"}, "workers", 0, 2),
        ({"workers": 1}, "workers", 1, [0, "input workers"]),
        ({"cores": 10**6}, "cores", 10**6, f"1 to {machine.available_cores()}"),
        ({"lr": 3}, "lr", 3, "optimizer.learning_rate?"),
        ({"batch_size": 3}, "batch_size", 3, "global_batch_size?"),
        ({"optimizer": {"eps": 3}}, "optimizer.eps", 3, "epsilon?"),
        ({"epoch": 3}, "epoch", 3, ["epochs?", "model, width"]),
        ({"data": {"sauce": "digits"}}, "data.sauce", "'digits'", ["source?", "source, image_size, limit"]),
        ({"data": "digits"}, "data", "'digits'", "data: {source: ...}"),
        ({1: 2}, "1", 1, 1),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_fix(
    values: dict[str, Any], field: str, received: object, fix: object
) -> None:
    with refused(SpecError, field=field, received=received, fix=fix):
        spec.build(values)


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("model", 3, ["string"]),
        ("epochs", 0, ["greater than or equal to 1"]),
        ("epochs", 1.5, ["integer"]),
        ("steps", -1, [1]),
        ("cores", 0, [1]),
        ("seed", -1, [0]),
        ("seed", 2**63, ["less than"]),
        ("global_batch_size", 0, [1]),
        ("precision", "float16", ["float32", "float64"]),
        ("loss", "crossentropy", ["sparse_categorical_crossentropy", "categorical_crossentropy"]),
        ("batch_norm_statistics", "synchronized", ["per_replica", "synchronised"]),
        ("data.source", "", ["at least 1 character"]),
        ("data.limit", 0, [1]),
        ("optimizer.name", "adamw", ["sgd", "adam"]),
        ("optimizer.learning_rate", 0, ["greater than 0"]),
        ("optimizer.learning_rate", math.inf, ["finite"]),
        ("optimizer.learning_rate", math.nan, ["finite"]),
        ("optimizer.momentum", 1.0, ["less than 1"]),
        ("optimizer.weight_decay", -1e-4, [0]),
        ("schedule.gamma", 1.1, [1]),
        ("schedule.scaling", "square", ["none", "linear", "sqrt"]),
        ("augmentation.shift_px", -1, [0]),
        ("epochs", 10**7, ["less than or equal to"]),
        ("steps", 10**10, ["less than or equal to"]),
        ("global_batch_size", 10**12, ["less than or equal to"]),
    ],
)
def test_a_value_outside_a_fields_range_is_refused_with_the_range(field: str, value: object, names: list[object]) -> None:
    with refused(SpecError, received=repr(value), fix=field, names=names) as caught:
        spec.build(spec.overlay({}, {field: value}))
    assert caught.error.field == field


@pytest.mark.parametrize(
    ("fields", "received", "names"),
    [
        (
            {"mode": "pipeline", "least_replicas": 1},
            "1 in mode pipeline",
            ["multi_process", "sharded_data_parallel", "Leave it out"],
        ),
        ({"least_replicas": 8}, "8 of 4", ["at most replicas", "Use 1"]),
        ({"hosts": ["localhost", "b"]}, "hosts localhost, b", ["one machine", "Leave one out"]),
        ({"communication": {"compression": "int8"}}, None, ["compressed gradients", "Leave it out"]),
        ({"input": "dask", "workers": 1, "dask": {"order": "owned", "owners": 4}}, None, ["own", "Leave it out"]),
    ],
)
def test_a_least_number_of_replicas_is_refused_where_none_may_be_lost(
    fields: dict[str, Any], received: str | None, names: list[str]
) -> None:
    with refused(SpecError, field="least_replicas", received=received, names=names):
        spec.build(ELASTIC | fields)


def test_an_elastic_run_loses_replicas_down_to_its_least_number_and_goes_on_from_its_own_checkpoints() -> None:
    run, seen = spec.build(ELASTIC), list[spec.Spec]()
    while (run := run.with_fewer_replicas) is not None:
        seen.append(run)
    assert [(each.mode, each.replicas) for each in seen] == [("multi_process", 2), ("serial", 1)]  # 3 do not divide 32
    assert all(seen[-1].can_resume_from(each) and each.can_resume_from(seen[-1]) for each in (spec.build(ELASTIC), *seen))
    assert not seen[-1].can_resume_from(spec.build({**ELASTIC, "seed": 1}))
    rigid = spec.build({**ELASTIC, "least_replicas": None})
    assert rigid.with_fewer_replicas is None and not rigid.can_resume_from(rigid.with_fields(replicas=2))
    assert rigid.digest == spec.build({name: value for name, value in ELASTIC.items() if name != "least_replicas"}).digest


def test_modes_that_cannot_lose_replicas_are_as_without_the_option() -> None:
    values = {"least_replicas": 1, "global_batch_size": 32}
    words = ("serial", "multi_process", "pipeline")
    assert [spec.build(spec.with_variant(values, word, 2)).least_replicas for word in words] == [None, 1, None]


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        spec.build({"epochs": 0, "data": {"limit": 0}, "sede": 1})
    assert [line.split(" ")[0] for line in str(caught.value).splitlines()] == ["data.limit", "epochs", "sede"]


def test_a_spec_cannot_be_changed() -> None:
    built = spec.build({})
    with pytest.raises(pydantic.ValidationError) as caught:
        built.seed = 1  # pyright: ignore[reportAttributeAccessIssue]
    assert caught.value.errors()[0]["type"] == "frozen_instance"


def test_with_fields_judges_again() -> None:
    built = spec.build({"steps": 7})
    assert built.with_fields(seed=3) == spec.build({"steps": 7, "seed": 3})
    with refused(SpecError, field="replicas", received=1, fix=2):
        built.with_fields(mode="data_parallel")


def test_a_recorded_spec_may_name_more_cores_than_there_are() -> None:
    text = spec.build({}).to_json().replace(f'"cores": {machine.available_cores()}', '"cores": 4096')
    assert spec.from_json(text).cores == 4096
    with refused(SpecError, field="cores", received=4096):
        spec.build(json.loads(text))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"mode": "serial"', '{"sede": 1}', '{"mode": "seriel"}', b"\xff"])
def test_a_torn_or_wrong_recorded_spec_is_refused(text: str | bytes) -> None:
    with pytest.raises(SpecError):
        spec.from_json(text)


# Files, and what the command line adds.


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("s.yaml", "seed: 4\ndata: {source: digits, limit: 10}\n", {"seed": 4, "data": {"source": "digits", "limit": 10}}),
        ("s.yml", "# nothing\n", {}),
        ("s.json", '{"optimizer":\t{"learning_rate": 1e-3}}', {"optimizer": {"learning_rate": 0.001}}),
    ],
)
def test_a_file_is_read_by_its_suffix(tmp_path: Path, name: str, text: str, expected: dict[str, Any]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert spec.build(spec.read_values(tmp_path / name)) == spec.build(expected)


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("s.json", b"{'seed': 1}", ["valid json"]),
        ("s.yaml", b"a: [1", ["valid yaml"]),
        ("s.yaml", b"\n", ["empty", "field: value"]),
        ("s.json", b"\xef\xbb\xbf \n", ["empty", "field: value"]),
        ("s.yaml", b"- 1\n- 2\n", ["mapping", "Received: list"]),
        ("s.yaml", b"data: {1: 2}\n", ["field without a name", "Received: 1"]),
        ("s.yaml", b"data: &it {limit: 5}\n", ["not accepted", "line 1", "anchor &it"]),
        ("s.yaml", b"seed: 1\ndata: *it\n", ["not accepted", "line 2", "alias *it"]),
        ("s.yaml", b"when: 2026-11-30", ["not accepted", "date", "quotes"]),
        ("s.yaml", b"!!python/object/apply:os.getcwd []", ["valid yaml"]),
        ("s.json", b"[" * 100_000, ["not accepted", "32 deep"]),
        ("s.yaml", b"\xff\xfe\xfd", ["utf-8"]),
        ("s.yaml", b"when: 2026-13-45", ["not accepted", "date"]),
        ("s.json", b'{"seed": 1, "data": {"limit": 5}, "seed": 2}', ["valid json", "seed", "twice"]),
        ("s.yaml", b"data: {limit: 5, limit: 6}", ["valid yaml", "limit", "twice"]),
        ("s.yaml", b"? [seed]\n: 1", ["valid yaml"]),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, name: str, content: bytes, names: list[str]) -> None:
    (tmp_path / name).write_bytes(content)
    with refused(SpecError, names=[name, *names]):
        spec.read_values(tmp_path / name)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"epochs": True}, "epochs"),
        ({"seed": True}, "seed"),
        ({"data": {"limit": True}}, "data.limit"),
        ({"optimizer": {"momentum": False}}, "optimizer.momentum"),
        ({"dask": {"speeds": [True, 2.0]}}, "dask.speeds"),
    ],
)
def test_true_and_false_are_no_numbers(values: dict[str, Any], field: str) -> None:
    with refused(SpecError, fix=field, names=["number"]) as caught:
        spec.build(values)
    assert caught.error.field == field
    assert spec.build({"optimizer": {"native": True}, "framework_options": {"xla": True}}).optimizer.native


def test_wrong_fields_of_a_file_are_named_with_it_and_other_sources_may_complete_the_rest() -> None:
    spec.check_fields({"mode": "data_parallel"}, "file a.yaml")  # no replicas yet
    with refused(SpecError, field="epochs", received="'two'", names=["file a.yaml"]):
        spec.check_fields({"mode": "data_parallel", "epochs": "two"}, "file a.yaml")


def numbers_of(model: type[pydantic.BaseModel], group: str = "") -> Iterator[tuple[str, Any]]:
    """Each whole number of a spec by its dotted name, with its limits."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, pydantic.BaseModel):
            yield from numbers_of(field.annotation, f"{name}.")
        elif field.annotation in (int, int | None):
            yield group + name, field.metadata


@pytest.mark.parametrize("field", dict(numbers_of(spec.Spec)))
def test_every_whole_number_has_an_upper_limit_and_its_error_names_it(field: str) -> None:
    for value in (10**20, 10**99):
        with refused(SpecError, received=value, fix=field, names=["less than"]) as caught:
            spec.build(spec.overlay({}, {field: value}))
        assert caught.error.field == field


def test_of_many_wrong_fields_the_first_ones_are_named() -> None:
    with refused(SpecError) as caught:
        spec.build({f"field{number}": "x" * 10_000 for number in range(1000)})
    lines = str(caught.error).splitlines()
    assert len(str(caught.error)) < 20_000 and len(lines) == 11 and "990" in lines[-1]


def test_a_missing_file_or_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none.yaml", "no file"), (tmp_path, "no plain file")):
        with refused(SpecError, fix=[".yaml", ".json"], names=[path, problem]):
            spec.read_values(path)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("seed=3", {"seed": 3}),
        ("optimizer.learning_rate=1e-3", {"optimizer.learning_rate": "1e-3"}),  # the field makes it a number
        ("data.limit=null", {"data.limit": None}),
        ("optimizer.native=true", {"optimizer.native": True}),
        ("data.source=a=b", {"data.source": "a=b"}),
        ("data.source=/tmp/x y.tar", {"data.source": "/tmp/x y.tar"}),
        ("model=mini_xception", {"model": "mini_xception"}),
    ],
)
def test_a_word_of_the_command_line_is_read_as_yaml(word: str, expected: dict[str, Any]) -> None:
    assert spec.parse_assignments([word]) == expected


@pytest.mark.parametrize(
    ("word", "received", "names"),
    [(word, repr(word), ["field=value"]) for word in ("seed", "=3", "")] + [("data.limit=[1", "'[1'", ["data.limit", "read"])],
)
def test_a_word_without_field_or_readable_value_is_refused(word: str, received: str, names: list[str]) -> None:
    with refused(SpecError, field="--set", received=received, names=names):
        spec.parse_assignments([word])


def test_overlay_sets_dotted_fields_and_leaves_the_rest_and_the_original_alone() -> None:
    values = {"seed": 1, "optimizer": {"name": "adam"}}
    merged = spec.overlay(values, {"optimizer.learning_rate": 0.1, "data.source": "x", "seed": None, "epochs": 4})
    assert merged == {"seed": None, "optimizer": {"name": "adam", "learning_rate": 0.1}, "data": {"source": "x"}, "epochs": 4}
    assert values == {"seed": 1, "optimizer": {"name": "adam"}}


def test_overlay_refuses_to_go_below_a_plain_field() -> None:
    with refused(SpecError, field="seed.x", received=1, names=["seed is not a group of fields"]):
        spec.overlay({"seed": 1}, {"seed.x": 2})


# The learning rate, against formulas written from the papers and torch.optim's documentation.


@dataclass(frozen=True)
class Rate:
    schedule: dict[str, Any]
    expected: list[float]
    replicas: int = 1


@pytest.mark.parametrize(
    "case",
    [
        Rate({}, [0.1] * 6),
        Rate({"name": "step", "step_size": 1, "gamma": 0.5}, [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]),
        Rate({"name": "step", "step_size": 2, "gamma": 0.1}, [0.1, 0.1, 0.1, 0.1, 0.01, 0.01]),
        Rate({"name": "exponential", "gamma": 0.9}, [0.1, 0.1, 0.09, 0.09, 0.081, 0.081]),
        Rate({"name": "cosine"}, [0.1, 0.0933013, 0.075, 0.05, 0.025, 0.00669873]),
        Rate({"warmup_steps": 4}, [0.025, 0.05, 0.075, 0.1, 0.1, 0.1]),
        Rate({"warmup_steps": 2, "name": "exponential", "gamma": 0.5}, [0.05, 0.1, 0.05, 0.05, 0.025, 0.025]),
        Rate({"scaling": "linear"}, [0.4] * 6, replicas=4),
        Rate({"scaling": "sqrt"}, [0.2] * 6, replicas=4),
        Rate({"scaling": "none"}, [0.1] * 6, replicas=4),
        Rate({"scaling": "linear", "warmup_steps": 2}, [0.2, 0.4, 0.4, 0.4, 0.4, 0.4], replicas=4),
    ],
    ids=lambda case: json.dumps(case.schedule),
)
def test_the_learning_rate_follows_its_schedule(case: Rate) -> None:
    built = spec.build(
        {
            "optimizer": {"learning_rate": 0.1},
            "schedule": case.schedule,
            "mode": "serial" if case.replicas == 1 else "data_parallel",
            "replicas": case.replicas,
        }
    )
    rates = [built.learning_rate(step, steps_per_epoch=2, total_steps=6) for step in range(6)]
    assert rates == pytest.approx(case.expected, rel=1e-6)


@given(st.integers(1, 50), st.integers(1, 500))
def test_cosine_falls_at_every_step_and_ends_above_zero(steps_per_epoch: int, total_steps: int) -> None:
    built = spec.build({"schedule": {"name": "cosine"}, "optimizer": {"learning_rate": 1.0}})
    rates = [built.learning_rate(step, steps_per_epoch, total_steps) for step in range(total_steps)]
    assert rates[0] == 1.0
    assert rates == sorted(set(rates), reverse=True)
    assert rates[-1] > 0


# What only a framework can judge.


def described(implementation: str, max_replicas: int | None, resource: str, *more: str, reason: str | None = None) -> Any:
    """A mode as `describe` of a twin has it."""
    return {
        "available": reason is None, "reason": reason, "max_replicas": max_replicas, "resource": resource,
        "implementation": implementation, "batch_norm_statistics": ["per_replica", *more],
    }  # fmt: skip


SERIAL = described("one process", 1, "processes", "synchronised")
ANYWHERE = SERIAL | {"max_replicas": None}
THREADS = described("replicas in CPU threads", 2, "CPU threads")
NO_DEVICES = "needs 2 CUDA devices, found 0"
MULTI_PROCESS = described("DistributedDataParallel", None, "processes", reason=NO_DEVICES)
DESCRIPTION: dict[str, Any] = {
    "framework": "pytorch",
    "modes": {"serial": SERIAL, "data_parallel": THREADS, "multi_process": MULTI_PROCESS},
    "options": {"memory_format": {"values": ["contiguous", "channels_last"], "default": "contiguous", "help": "layout"}},
}


def assert_unavailable(answer: str | None, *names: object) -> None:
    """Assert that a row is not available for a reason that names these, or that it is available if there is none."""
    if names:
        assert answer is not None and answer.startswith("not available: ")
        check(UserError(answer), names=names)
    else:
        assert answer is None


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, []),
        ({"batch_norm_statistics": "synchronised"}, []),
        ({"framework_options": {"memory_format": "channels_last"}}, []),
        ({"mode": "data_parallel", "replicas": 2}, []),
        ({"mode": "data_parallel", "replicas": 4}, ["4 CPU threads", "found 2"]),
        (
            {"mode": "data_parallel", "replicas": 2, "batch_norm_statistics": "synchronised"},
            ["no synchronised BatchNorm", "replicas in CPU threads"],
        ),
        ({"mode": "multi_process", "replicas": 2}, [NO_DEVICES]),
    ],
)
def test_a_mode_that_this_machine_cannot_do_is_not_available(values: dict[str, Any], names: list[str]) -> None:
    assert_unavailable(spec.check_against(spec.build(values), DESCRIPTION), *names)


@pytest.mark.parametrize(("feed", "names"), [("workers", ["no semaphores"]), ("inline", [])])
def test_an_input_that_this_machine_cannot_have_is_not_available(feed: str, names: list[str]) -> None:
    description = {**DESCRIPTION, "inputs_not_available": {"workers": "no semaphores"}}
    assert_unavailable(spec.check_against(spec.build({"input": feed, "workers": int(feed == "workers")}), description), *names)


@pytest.mark.parametrize(("batch", "parts"), [(64, 4), (50, 2), (63, 3), (61, 1)])
def test_a_pipeline_whose_batch_cannot_be_cut_is_none(batch: int, parts: int) -> None:
    description = {**DESCRIPTION, "modes": {"pipeline": THREADS, "model_parallel": THREADS}}
    asked = spec.build({"mode": "pipeline", "replicas": 2, "global_batch_size": batch, "pipeline": {"micro_batches": 4}})
    assert asked.micro_batches() == parts
    names = ["61 examples", "2 to 4 equal micro-batches", "model_parallel"] if parts == 1 else []
    assert_unavailable(spec.check_against(asked, description), *names)
    assert_unavailable(spec.check_against(asked.with_fields(mode="model_parallel"), description))


@pytest.mark.parametrize(
    ("replicas", "hosts", "here", "needed"),
    [
        (2, ("a", "b"), None, None),
        (4, ("a", "b"), None, None),
        (5, ("a", "b"), None, 3),
        (4, (), None, 4),
        (4, (), 2, None),
        (4, (), 3, 3),
    ],
)
def test_a_machine_needs_devices_for_its_own_replicas_alone(
    replicas: int, hosts: tuple[str, ...], here: int | None, needed: int | None
) -> None:
    description = {**DESCRIPTION, "modes": {"multi_process": THREADS | {"resource": "CUDA devices"}}}
    over = spec.build({"mode": "multi_process", "replicas": replicas, "hosts": hosts, "global_batch_size": 60})
    names = [] if needed is None else [f"needs {needed} CUDA devices", "found 2"]
    assert_unavailable(spec.check_against(over, description, here), *names)


@pytest.mark.parametrize(
    ("options", "field", "received", "fix"),
    [
        ({"memory_formt": 1}, "memory_formt", 1, "did you mean memory_format?"),
        ({"memory_format": "nchw"}, "memory_format", "'nchw'", "contiguous or channels_last"),
        ({"memory_format": ["contiguous"]}, "memory_format", "['contiguous']", "contiguous or channels_last"),
    ],
)
def test_a_switch_that_the_framework_does_not_have_is_refused(
    options: dict[str, Any], field: str, received: object, fix: str
) -> None:
    with refused(SpecError, field=field, received=received, fix=fix, names=["pytorch"]):
        spec.check_against(spec.build({"framework_options": options}), DESCRIPTION)


def test_a_switch_is_named_as_the_user_wrote_it() -> None:
    run = spec.build({"framework_options": {"memory_format": "nchw"}})
    location = ("contestants", "a", "switches", "memory_format")
    with refused(SpecError, names="nchw") as caught:
        spec.check_against(run, DESCRIPTION, locations={"memory_format": location})
    assert caught.error.field == "contestants.a.switches.memory_format"
    option = DESCRIPTION["options"]["memory_format"] | {"only": {"contiguous": {"precision": ["float64"]}}}
    run = spec.build({"framework_options": {"memory_format": "contiguous"}})
    with written.remembered():
        written.remember("contiguous", ".".join(location), "--contestant a: memory_format")
        answer = spec.check_against(
            run, DESCRIPTION | {"options": {"memory_format": option}}, locations={"memory_format": location}
        )
    assert_unavailable(answer, "--contestant a: memory_format=contiguous", "float64")


def test_a_switch_that_is_not_for_a_mode_makes_its_row_not_available() -> None:
    modes = ["serial", "parameter_server"]
    option = {"values": [False, True], "default": False, "only": {"True": {"mode": modes}}}
    description = {**DESCRIPTION, "modes": dict.fromkeys(spec.MODES.names(), ANYWHERE), "options": {"quick": option}}
    for word in spec.MODES:
        asked = spec.build(spec.with_variant({"framework_options": {"quick": True}}, word, 2))
        names = ["framework_options.quick=True", *modes, f"not for {asked.mode}"]
        assert_unavailable(spec.check_against(asked, description), *([] if asked.mode in modes else names))
        assert spec.check_against(asked.with_fields(framework_options={"quick": False}), description) is None


SWITCHES = {
    "digits": {
        "values": ["all", "few"],
        "default": "all",
        "elsewhere": {"some": "a CUDA device"},
        "only": {"few": {"precision": ["float32"], "data.loading": ["cached"]}},
        "reduced": ["few", "some"],
    },
    "memory": {"values": ["kept", "given back"], "default": "kept", "plain": "given back"},
    "pace": {"values": ["slow", "quick"], "default": "slow", "plain": "quick", "only": {"quick": {"mode": ["serial"]}}},
}


@pytest.mark.parametrize(
    ("values", "chosen"),
    [
        ({}, ("all", "kept", "slow")),
        ({"switches": "best"}, ("all", "kept", "slow")),
        ({"switches": "plain"}, ("all", "given back", "quick")),
        ({"switches": "plain", "mode": "data_parallel", "replicas": 2}, ("all", "given back", "slow")),
        ({"switches": "plain", "framework_options": {"memory": "kept", "digits": "few"}}, ("few", "kept", "quick")),
    ],
)
def test_a_level_sets_the_switches_that_the_spec_does_not_name(values: dict[str, Any], chosen: tuple[str, ...]) -> None:
    run = spec.build(values)
    assert tuple(spec.resolve_switches(run, SWITCHES).values()) == chosen
    assert spec.reduced_precision_switches(run, SWITCHES) == (["digits=few"] if chosen[0] == "few" else [])


@pytest.mark.parametrize(
    ("digits", "values", "names"),
    [
        ("some", {}, ["a CUDA device"]),
        ("few", {"precision": "float64"}, ["precision float32", "not for float64"]),
        ("few", {"data": {"loading": "streaming"}}, ["data.loading cached", "not for streaming"]),
        ("few", {}, []),
    ],
)
def test_a_switch_that_does_not_fit_run_or_machine_makes_its_row_not_available(
    digits: str, values: dict[str, Any], names: list[str]
) -> None:
    answer = spec.check_against(
        spec.build({"framework_options": {"digits": digits}} | values), DESCRIPTION | {"options": SWITCHES}
    )
    assert_unavailable(answer, *(names and [f"framework_options.digits={digits}", *names]))


@pytest.mark.parametrize(("native", "update"), [(False, "fused"), (True, "an operation at a time")])
def test_a_switch_may_set_another_condition_with_the_framework_s_own_optimizer(native: bool, update: str) -> None:
    option = {"values": ["quick"], "default": "quick", "sets": {"graph": {"quick": "eager"}, "update": {"quick": "fused"}}}
    option |= {"sets_native": {"update": {"quick": "an operation at a time"}}}
    description = {"modes": {"serial": {}}, "options": {"graph": option}}
    run = spec.build({"optimizer": {"native": native}})
    assert spec.conditions(run, description) == {"precision": "float32", "graph": "eager", "update": update}


def test_a_framework_without_switches_says_so() -> None:
    with refused(SpecError, field="x", received=1, fix="nothing", names=["pytorch"]):
        spec.check_against(spec.build({"framework_options": {"x": 1}}), DESCRIPTION | {"options": {}})


def test_micro_batches_have_no_statistics_in_common() -> None:
    description = {**DESCRIPTION, "modes": dict.fromkeys(spec.MODES.names(), ANYWHERE)}
    unavailable: set[str] = set()
    for word in spec.MODES:
        asked = spec.build(spec.with_variant({"batch_norm_statistics": "synchronised"}, word, 2))
        assert spec.check_against(asked.with_fields(batch_norm_statistics="per_replica"), description) is None
        if answer := spec.check_against(asked, description):
            who = f"the micro-batches of a {word}" if "pipeline" in word else "workers that do not wait for each other"
            assert_unavailable(answer, who, "BatchNorm statistics")
            unavailable.add(word)
    assert unavailable == {"pipeline", "pipeline_1f1b", "pipeline_async", "hybrid_pipeline", "parameter_server_async"}


def test_copies_of_a_pipeline_wait_for_each_other() -> None:
    assert spec.build(spec.with_variant({"pipeline": {"schedule": "1f1b"}}, "hybrid_pipeline", 2)).variant == "hybrid_pipeline"
    with refused(SpecError, field="pipeline.schedule", fix=["gpipe", "1f1b"], names=["synchronous", "mode hybrid"]):
        spec.build(spec.with_variant({"pipeline": {"schedule": "asynchronous"}}, "hybrid_pipeline", 2))


def test_a_spec_of_the_models_own_structure_is_the_one_of_before() -> None:
    """Results that were stored before there were these fields keep their digest, and are read."""
    plain = spec.build({"cores": 1})
    structure = {"width", "depth", "dropout"}
    earlier = plain.model_dump(mode="json", exclude=structure)
    text = plain.model_dump_json(exclude={*structure, "least_replicas"})
    assert plain.digest == hashlib.sha256(text.encode()).hexdigest()
    assert spec.from_json(json.dumps(earlier)) == plain and plain.model_label == "simple_cnn"
    assert spec.build({"cores": 1, "width": 1, "depth": 1.0}).digest == plain.digest
    others = ({"width": 0.5}, {"depth": 0.5}, {"dropout": 0.5}, {"dropout": 0.0})
    assert len({plain.digest, *(spec.build({"cores": 1, **fields}).digest for fields in others)}) == 5
    assert spec.build({"model": "vgg16", "width": 0.125, "dropout": 0}).model_label == "vgg16 (width 0.125, dropout 0)"


@pytest.mark.parametrize("fields", [{"width": 2}, {"depth": 0.5}, {"dropout": 0.1}])
def test_the_structure_of_a_users_own_model_is_its_own(fields: dict[str, Any]) -> None:
    name, value = next(iter(fields.items()))
    with refused(SpecError, received=f"{name} {value} for mine.net", names=["architecture()", "Leave them out"]):
        spec.build({"model": "mine.net", **fields})

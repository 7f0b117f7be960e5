"""Text from anybody becomes plain values within limits, or is refused with a reason."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from common import spec
from common.spec import SpecError, plain_values
from common.spec.plain_values import MAX_BYTES, MAX_DEPTH, MAX_VALUES, PlainValuesError
from tests import hostile_files
from tests.support.refusals import refused

ALIASES = "a0: &a0 [x, x, x]\n" + "".join(f"a{at}: &a{at} [{','.join([f'*a{at - 1}'] * 9)}]\n" for at in range(1, 20))
"""A bomb: each level is nine times the one before."""

REFUSED = {
    "aliases": (ALIASES, "line 1 has the anchor &a0"),
    "an alias": ("a: 1\nb: *a", "line 2 has the alias *a"),
    "an anchor": ("&a b", "line 1 has the anchor &a"),
    "an anchor of a name": ("? &a b\n: 1", "line 1 has the anchor &a"),
    "an alias in a merge": ("a: {<<: *b}", "line 1 has the alias *b"),
    "a long name of an anchor": (f"&{'a' * 60_000} b", "write each value out"),
    "brackets": ("[" * 5000, "32 deep"),
    "braces": ("{a: " * 5000, "32 deep"),
    "dashes": ("- " * 5000, "32 deep"),
    "question marks": ("? " * 5000, "32 deep"),
    "many values": (f"[{'1,' * MAX_VALUES}]", "20,000"),
    "a long text": ("x" * (MAX_BYTES + 1), "131,072 bytes"),
    "a list for a name": ("? [a]\n: 1", "unhashable key"),
    "a mapping for a name": ("{? {a: 1} : 1}", "unhashable key"),
    "a number for a name": ("a: {1: 2}", "Received: 1"),
    "a number for a name, in a list": ("a: [{1: 2}]", "Received: 1"),
    "no for a name": ("no: 2", "Received: False"),
    "a name twice": ("{a: 1, 'a': 2}", "a stands there twice"),
    "a name twice, in a list": ("- a: 1\n  a: 2", "a stands there twice"),
    "hexadecimal digits": (f"a: 0x{'f' * 5000}", "100 digits"),
    "digits": (f"a: {'9' * 5000}", "100 digits"),
    "minutes and seconds": (f"a: 1{':59' * 5000}", "100 digits"),
    "a date": ("2001-01-01", "2001-01-01"),
    "no date": ("!!timestamp 2001-99-99", "2001-99-99"),
    "no boolean": ("!!bool maybe", "KeyError: 'maybe'"),
    "no number": ("!!int ''", "IndexError"),
    "no number either": ("!!float x", "ValueError"),
    "a set": ("!!set {a, b}", "could not determine a constructor"),
    "bytes": ("!!binary aGk=", "could not determine a constructor"),
    "pairs": ("!!pairs [a: 1]", "could not determine a constructor"),
    "code": ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
    "half a letter": (r'"\ud800"', "half a letter"),
    "two documents": ("a\n---\nb", "expected a single document"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_yaml_that_exceeds_a_limit_or_is_not_plain_is_refused(case: str) -> None:
    text, reason = REFUSED[case]
    with refused(PlainValuesError, names=[reason]):
        plain_values.from_yaml(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "a stands there twice"),
        ('[{"a": 1, "b": {"c": 1, "c": 1}}]', "c stands there twice"),
        ("[" * 100_000, "32 deep"),
        ('{"a":' * 40 + "1" + "}" * 40, "32 deep"),
        (f"[{'1,' * MAX_VALUES}1]", "20,000"),
        (f"1{'0' * 100}", "100 digits"),
        ("9" * 5000, "Exceeds the limit"),
        (r'"\ud800"', "half a letter"),
        (r'{"\udfff": 1}', "half a letter"),
        (f'"{"x" * MAX_BYTES}"', "131,072 bytes"),
        ("{'a': 1}", "Expecting property name"),
        ("", "Expecting value"),
    ],
    ids=range(12),
)
def test_json_that_exceeds_a_limit_or_has_a_name_twice_is_refused(text: str, reason: str) -> None:
    with refused(PlainValuesError, names=[reason]):
        plain_values.from_json(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: {b: [1, 2.5, null, true, 'x']}", {"a": {"b": [1, 2.5, None, True, "x"]}}),
        ("'2001-01-01'", "2001-01-01"),
        ("0x10", 16),
        ("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH, json.loads("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH)),
        ("9" * 100, int("9" * 100)),
    ],
)
def test_plain_values_are_read(text: str, value: Any) -> None:
    assert plain_values.from_yaml(text) == value


def test_the_error_of_an_alias_names_the_file(tmp_path: Path) -> None:
    (path := tmp_path / "spec.yaml").write_text("data: &data {limit: 5}\n")
    with refused(SpecError, fix="Mend the file", names=[path, "&data", "write each value out"]):
        spec.read_values(path)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=10,
)


@given(plain)
def test_what_is_written_is_read(value: Any) -> None:
    assert plain_values.from_json(json.dumps(value)) == value
    assert plain_values.from_yaml(yaml.safe_dump(value)) == value


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_a_file_without_end_is_not_read(name: str, tmp_path: Path) -> None:
    reason = hostile_files.put(name, tmp_path / "spec.yaml").strip()
    with hostile_files.soon(), refused(SpecError, fix=".yaml", names=[f"{tmp_path / 'spec.yaml'} {reason}"]):
        spec.read_values(tmp_path / "spec.yaml")


def test_a_file_may_come_from_a_command_and_is_read_up_to_the_limit() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as written:
        written.write("epochs: 3")
        written.close()
        assert spec.read_values(Path(f"/dev/fd/{reading}")) == {"epochs": 3}
    with Path("/dev/zero").open() as endless, refused(SpecError, names=["131,072 bytes"]):
        spec.read_values(Path(f"/dev/fd/{endless.fileno()}"))


def test_the_studies_of_this_project_are_far_from_every_limit() -> None:
    files = list((Path(__file__).parents[3] / "studies").glob("*.yaml"))
    assert len(files) == 3
    for file in files:
        assert file.stat().st_size < MAX_BYTES / 8
        assert spec.read_values(file)

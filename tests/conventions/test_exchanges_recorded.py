"""Functions of the frameworks that exchange between ranks are called in `collectives` alone, which records them.

What a framework's classes exchange inside, such as `fully_shard` and a strategy's `run`, is recorded where they are used.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

EXCHANGES = {
    "pytorch_impl": (
        "distributed",
        {
            *(
                "all_reduce",
                "all_gather",
                "all_gather_into_tensor",
                "all_gather_single",
                "all_gather_object",
                "reduce",
                "gather",
            ),
            *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "scatter", "broadcast", "barrier"),
            *("send", "recv", "isend", "irecv", "batch_isend_irecv", "new_group", "broadcast_object_list", "monitored_barrier"),
        },
    ),
    "tensorflow_impl": ("distribute", {"MultiWorkerMirroredStrategy"}),
}
"""{package: (module of the framework, its functions that wait for other ranks)}. TensorFlow's exchanges are in graphs."""

RECORDED = {
    ("pytorch_impl/shards.py", "all_to_all_single"): "recorded there as reduce_scatter",
    ("tensorflow_impl/parallel/group.py", "MultiWorkerMirroredStrategy"): "recorded there as rendezvous",
}
"""Calls elsewhere, each with its record."""


def calls(package: Path, module: str, names: set[str]) -> Iterator[tuple[str, str]]:
    """(file, function) of every call of one of a framework's exchanges outside `collectives.py`."""
    for path in sorted(package.rglob("*.py")):
        if path.name == "collectives.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(found) | ast.Attribute(attr=found), attr=name)):
                    if found in (module, "dist") and name in names:
                        yield path.relative_to(package.parent).as_posix(), name
                case _:
                    pass


@pytest.mark.parametrize("package", EXCHANGES)
def test_every_exchange_is_recorded(package: str) -> None:
    found = set(calls(PROJECT / package, *EXCHANGES[package]))
    assert found == {call for call in RECORDED if call[0].startswith(f"{package}/")}


@pytest.mark.parametrize("call", ["distributed.barrier()", "torch.distributed.barrier()", "dist.isend(values, 1)"])
def test_an_exchange_that_is_not_recorded_is_found(tmp_path: Path, call: str) -> None:
    package = tmp_path / "pytorch_impl"
    package.mkdir()
    (package / "mode.py").write_text(f"def step():\n    {call}\n    collectives.barrier()\n", encoding="utf-8")
    assert len(list(calls(package, *EXCHANGES["pytorch_impl"]))) == 1

"""What every twin needs of its environment."""

import ast
import re
import sys

from common.machine import environment
from common.machine.machine import PROJECT_ROOT

DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Of modules with another name."""


OPTIONAL = {"nvtx"}
"""Imported only where a profiler has started the process, see `common.machine.ranges`."""


def test_what_every_twin_needs_is_what_common_imports_and_the_locks_name() -> None:
    text = (PROJECT_ROOT / "locks" / "common.txt").read_text(encoding="utf-8")
    assert {*environment.REQUIRED} == {name.lower() for name in re.findall(r"^([A-Za-z-]+)==", text, re.MULTILINE)}
    for name in ("locks/pytorch-cuda.txt", "locks/tensorflow-cpu.txt", "locks/tensorflow-cuda.txt"):
        assert "\n-r common.txt\n" in (PROJECT_ROOT / name).read_text(encoding="utf-8")
    assert "\n-r ../../locks/common.txt\n" in (PROJECT_ROOT / "plugins/jax_twin/requirements.txt").read_text(encoding="utf-8")
    imported: set[str] = set()
    for path in (PROJECT_ROOT / "common").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    others = {DISTRIBUTIONS.get(name, name) for name in imported - sys.stdlib_module_names - {"common"} - OPTIONAL}
    assert {*environment.REQUIRED} == others

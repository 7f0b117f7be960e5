"""A user's own model module may be wrong in any way. It never ends a command as if its work were done."""

import os
import py_compile
import re
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import common
from common.models import architectures, user_code
from common.spec import SpecError
from tests.support import processes
from tests.support.refusals import refused

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a user's module, and gives its dotted name."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ending").mkdir()

    def write(source: str) -> str:
        (tmp_path / "ending" / "net.py").write_text(f"import os, sys\n{source}\n", encoding="utf-8")
        for name in ("ending", "ending.net"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        return "ending.net"

    return write


ENDINGS = ["sys.exit(0)", "sys.exit()", "sys.exit(3)", "sys.exit('done')", "os._exit(0)", "raise SystemExit"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("where", ["{}", "def architecture(num_classes, image_size):\n    {}"], ids=["import", "architecture"])
def test_a_module_that_ends_the_process_is_refused_with_its_line(
    own_module: Callable[[str], str], ending: str, where: str
) -> None:
    model = own_module(where.format(ending))
    with refused(SpecError, names=["ending.net", "ends the process", "SystemExit", "net.py", "Take"]) as caught:
        architectures.resolve(model, 3, 8)
    assert re.search(r"line \d", str(caught.error))
    assert os._exit is user_code._EXIT


@pytest.mark.parametrize(
    ("source", "names", "least_length"),
    [
        ("raise BaseException('\\x1b[31mred')", ["failed", "BaseException", "[31mred", "net.py, line 3", "Mend"], 0),
        ("raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})", ["E", "text", "ZeroDivisionError"], 0),
        ("raise ValueError('a' * 10**6)", ["ValueError"], 9_000),
    ],
)
def test_whatever_a_module_raises_becomes_one_short_line(
    own_module: Callable[[str], str], source: str, names: list[str], least_length: int
) -> None:
    model = own_module(f"def architecture(num_classes, image_size):\n    {source}")
    with refused(SpecError, names=names) as caught:
        architectures.resolve(model, 3, 8)
    text = str(caught.error)
    assert text.isprintable() and least_length <= len(text) <= 11_000


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_builder_that_ends_the_process_is_refused(own_module: Callable[[str], str], ending: str) -> None:
    builder = user_code.builder(own_module(f"def build_pytorch(*_):\n    {ending}"), "pytorch")
    assert builder is not None
    with refused(SpecError, names=["ends the process"]):
        builder(None, "float32", None)


def test_a_process_that_a_module_forks_may_end(own_module: Callable[[str], str]) -> None:
    model = own_module("child = os.fork()\nif not child:\n    os._exit(0)\nended = os.waitpid(child, 0)[1]")
    assert user_code.module(model).__dict__["ended"] == 0


def test_a_signal_ends_a_twin_also_while_it_imports_a_module(own_module: Callable[[str], str]) -> None:
    with pytest.raises(SystemExit):
        user_code.module(own_module(f"sys.exit({128 + signal.SIGTERM})"))


@pytest.mark.parametrize(
    ("source", "lacks_the_name"),
    [
        ("class Near:\n    def forward(self): ...", True),
        ("class Near: ...\ndef build(self): return self.modules()", True),
        ("if os.environ:\n    Nearly = 3", False),
        ("from os import path as Nearly", False),
        ("match 3:\n    case Nearly: ...", False),
        ("for name in ['Nearly']:\n    globals()[name] = 3", False),
        ("setattr(sys.modules[__name__], 'Near' + 'ly', 3)", False),
        ("sys.modules[__name__].__dict__['Near' + 'ly'] = 3", False),
        ("def __getattr__(name): return 3", False),
        ("from tests.common.models.all_names import *", False),
        ("class Nearly(:", False),  # importing it says where it is torn
    ],
)
def test_a_name_that_the_text_of_a_module_cannot_define_is_refused_without_importing_it(
    own_module: Callable[[str], str], source: str, lacks_the_name: bool
) -> None:
    name = f"{own_module(source)}:Nearly"
    file = user_code.file_of("ending.net")
    assert file is not None
    if not lacks_the_name:
        user_code.refuse_absent(name, file)
        return
    parts: dict[str, Any] = {"field": "ending.net", "received": "ending.net:Nearly", "fix": ["net.py", "Near?"]}
    with refused(SpecError, **parts):
        user_code.refuse_absent(name, file)
    assert "ending.net" not in sys.modules
    with refused(SpecError, **parts):
        user_code.find(name)


FORMER = [
    "from common.models.architectures import Architecture",
    "from common.models import architectures",
    "import common.models.architectures as found",
    "def build():\n    from pytorch_impl import batch_norm",
    "def build():\n    import tensorflow_impl.batch_norm",
    "from common.matching import pair",
]


@pytest.mark.parametrize("source", FORMER)
def test_a_model_that_imports_a_former_address_works_and_the_notice_names_the_new_one(
    own_module: Callable[[str], str], source: str
) -> None:
    model = own_module(source)
    with pytest.warns(FutureWarning, match=r"convtwins\.models") as notices:
        user_code.module(model)
    assert {Path(notice.filename).name for notice in notices} == {"net.py"}
    assert {notice.lineno for notice in notices} == {1 + len(source.splitlines())}
    with warnings.catch_warnings(action="error"):  # once is enough
        user_code.module(model)


def test_a_compiled_model_without_source_is_imported(own_module: Callable[[str], str], tmp_path: Path) -> None:
    model, package = own_module("NUMBER = 3"), tmp_path / "ending"
    py_compile.compile(str(package / "net.py"), cfile=str(package / "net.pyc"), doraise=True)
    (package / "net.py").unlink()
    imported = user_code.module(model)
    assert (imported.NUMBER, Path(str(imported.__file__)).name) == (3, "net.pyc")


def test_a_model_that_imports_the_stable_address_gets_no_notice(own_module: Callable[[str], str]) -> None:
    model = own_module("from convtwins import models\nfrom convtwins.models import Architecture")
    with warnings.catch_warnings(action="error"):
        own = user_code.module(model)
    assert own.Architecture is own.models.Architecture is architectures.Architecture


def test_the_stable_address_is_importable_alone_and_imports_no_framework(tmp_path: Path) -> None:
    source = (
        f"import sys; sys.path.insert(0, {str(PROJECT)!r}); from convtwins import models;"
        "assert models.Architecture and callable(models.batch_norm_pytorch) and set(models.__all__) <= set(dir(models));"
        "assert not {'torch', 'tensorflow', 'keras', 'compare'} & set(sys.modules)"
    )
    processes.python("-c", source, folder=tmp_path, PYTHONPATH=None).succeeded()


@pytest.mark.parametrize(
    "line",
    [
        "from common.architectures import Architecture",
        "from common import architectures; Architecture = architectures.Architecture",
        "import common.architectures as found; Architecture = found.Architecture",
    ],
)
def test_a_model_that_imports_the_former_address_of_the_architectures_gets_them_with_a_notice(
    own_module: Callable[[str], str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = own_module(line)
    monkeypatch.delitem(sys.modules, "common.architectures", raising=False)
    monkeypatch.delattr(common, "architectures", raising=False)
    with pytest.warns(FutureWarning, match=r"convtwins\.models") as notices:
        own = user_code.module(model)
    monkeypatch.delitem(sys.modules, "common.architectures")
    assert own.Architecture is architectures.Architecture
    assert Path(notices[0].filename).name == "net.py"

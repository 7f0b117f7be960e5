"""Holds the twins' files, public names, order, parameters and docstrings against each other, without importing them."""

import ast
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).parents[2]
LEFT, RIGHT = PROJECT / "pytorch_impl", PROJECT / "tensorflow_impl"

RENAMED = {
    "call": "forward",  # Keras and torch each say how a layer's own method must be named.
    "build_tensorflow": "build_pytorch",  # A user's model module brings a builder for each framework.
}
"""Names in the right twin that stand for a name in the left one."""

_RANKS = "Torch's replicas are ranks, which must meet and ask each other; TensorFlow's are devices of one graph."
_DEVICES = "TensorFlow's replicas may be devices of one process, whose memory nobody can measure."
_FORMATS = "A layout in memory is a switch of torch alone; TensorFlow's kernels on the CPU are NHWC."
_AGES = "TensorFlow keeps weights of several ages; torch's updates wait."

_WATCHED = "Torch's functions are watched as they are called; a graph computes later what its layers compute."
_CALLED = "Torch's exchanges are Python's calls; TensorFlow's run inside a graph, which is called as a whole."
EXCEPTIONS: dict[tuple[str, str], str] = {
    **{
        ("collectives.py", name): _CALLED
        for name in (
            *("all_reduce", "start_all_reduce", "start_all_gather", "broadcast", "gather_objects"),
            *("barrier", "new_group", "swap", "send", "receive", "begin_message", "run_graph"),
            *(f"RecordedDistributedDataParallel{method}" for method in ("", ".__init__", ".forward", ".finish_exchange")),
        )
    },
    **{("models.py", name): _FORMATS for name in ("to_device", "to_memory_format")},
    ("channels.py", "split"): _FORMATS,
    **{
        ("optim.py", f"{name}.__init__"): "The kernel of an update is a switch of torch; TensorFlow's are always fused."
        for name in ("SGD", "Adam", "NativeOptimizer")
    },
    **{
        ("private_api.py", name): "Each framework lacks public names of its own."
        for name in (
            *("profiler_of_all_threads", "fsdp_collectives", "bucket_bytes", "with_signature"),
            *("set_heartbeat_timeout", "resource_dtype", "leave_gradients_unsummed", "free", "sublayers", "all_layers"),
            *("records_all_calls", "new_name_counts", "planes"),
        )
    },
    ("slots.py", ""): "Torch's input workers are processes, which share memory; TensorFlow's are threads.",
    ("native.py", "UserModel.forward"): "Keras takes a model's inputs as one list, and the training mode with each call.",
    ("native.py", "UserModel.constants"): "Torch counts a model's constants (buffers) with its statistics. Keras has none.",
    **{
        ("decisions.py", f"DecisionRecorder{method}"): _WATCHED
        for method in ("", ".__init__", ".__torch_function__", ".by_layer", ".__enter__", ".__exit__", ".observed", ".to_array")
    },
    ("models.py", "build_layers"): "Keras is told the shape in front of layers; torch hears of it from the values.",
    **{
        ("parallel/data_parallel.py", name): "A shard cut in TensorFlow's graph; torch's replicas are told theirs."
        for name in ("run_on_shards",)
    },
    ("parallel/data_parallel.py", "sum_replicas"): "A strategy returns a value of each replica; torch stacks a list.",
    (
        "parallel/data_parallel.py",
        "mirrored_group",
    ): "TensorFlow's replicas in one process form a strategy, one for all recordings of the process.",
    ("device.py", "copies"): "A strategy's variable stands for all replicas; torch's replicas have tensors of their own.",
    ("device.py", "graph"): "TensorFlow makes a graph of a step; torch runs the step as it is.",
    ("parallel/trainer.py", "Trainer.memory_by_device"): _DEVICES,
    ("shards.py", "divide"): "Torch's `fully_shard` cuts buckets; in TensorFlow each layer gathers by itself.",
    ("shards.py", "bytes_per_pass"): "TensorFlow's graph says what it sends; torch counts what it has sent.",
    ("shards.py", "most_gathered_bytes"): _DEVICES,
    ("parallel/tensor_parallel.py", "TensorParallel.num_values"): _RANKS,
    ("parallel/hybrid_tensor.py", "HybridTensor.load_weights"): "TensorFlow's copies are all in this process.",
    ("parallel/pipeline.py", "Pipeline.fetch"): _RANKS,
    ("parallel/pipeline_async.py", "PipelineAsync.load_weights"): _AGES,
}
"""{(file, name): reason} of the differences that a framework forces; the name is "" for the file or its docstring."""

LEAST_SHARE = 0.75
"""Part of the public names that the twins share. Exceptions make up the rest, and their number cannot grow unseen."""

MARKS = {"property", "setter", "cached_property", "staticmethod", "classmethod", "contextmanager", "dataclass"}
"""Decorators that change how a name is used; others (`torch.no_grad()`, `tf.function`) are a framework's own affair."""


class Entry(NamedTuple):
    """What a caller sees of one public name."""

    name: str
    signature: str
    docstring: str | None


class Difference(NamedTuple):
    """One thing that the twins do not share."""

    file: str
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.name or 'the file'}: {self.what}"


def differences(left: Path, right: Path) -> list[Difference]:
    """Everything that differs between two packages, in the order of their files."""
    files = {side: {path.relative_to(side).as_posix() for path in side.rglob("*.py")} for side in (left, right)}
    found = [Difference(file, "", f"is missing in {right.name}") for file in files[left] - files[right]]
    found += [Difference(file, "", f"is missing in {left.name}") for file in files[right] - files[left]]
    for file in files[left] & files[right]:
        found += _compare(file, left, right)
    return sorted(found)


def share(left: Path, right: Path) -> float:
    """The part of all public names that both packages have with the same parameters and in the same order, file by file."""
    shared = total = 0
    for file in sorted({path.relative_to(side) for side in (left, right) for path in side.rglob("*.py")}):
        outlines = [
            [(entry.name, entry.signature) for entry in _outline(ast.parse((side / file).read_text(encoding="utf-8"))).values()]
            if (side / file).exists()
            else []
            for side in (left, right)
        ]
        blocks = SequenceMatcher(None, *outlines, autojunk=False).get_matching_blocks()
        shared += sum(block.size for block in blocks)
        total += len({*outlines[0], *outlines[1]})
    return shared / total


def _compare(file: str, left: Path, right: Path) -> Iterator[Difference]:
    ours, theirs = (_outline(ast.parse((side / file).read_text(encoding="utf-8"))) for side in (left, right))
    for name in ours.keys() - theirs.keys():
        yield Difference(file, name, f"is missing in {right.name}")
    for name in theirs.keys() - ours.keys():
        yield Difference(file, name, f"is missing in {left.name}")
    shared = [name for name in ours if name in theirs]
    for name, other in zip(shared, [name for name in theirs if name in ours], strict=True):
        if name != other:
            yield Difference(file, name, f"stands where {right.name} has {other}")
            break
    for name in shared:
        for field in ("signature", "docstring"):
            values = (getattr(ours[name], field), getattr(theirs[name], field))
            if values[0] != values[1]:
                yield Difference(file, name, f"{field} is {values[0]!r} in {left.name} and {values[1]!r} in {right.name}")


def _outline(tree: ast.Module) -> dict[str, Entry]:
    entries: dict[str, Entry] = {"": Entry("", "module", ast.get_docstring(tree))}
    for entry in _public(tree.body, prefix="", in_class=False):
        name = entry.name
        while name in entries:  # a property and its setter share a name
            name += "'"
        entries[name] = entry
    return entries


def _public(body: list[ast.stmt], prefix: str, *, in_class: bool) -> Iterator[Entry]:
    for node, following in zip_longest(body, body[1:]):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if _is_public(node.name):
                yield Entry(prefix + RENAMED.get(node.name, node.name), _signature(node), ast.get_docstring(node))
            case ast.ClassDef() if _is_public(node.name):
                yield Entry(prefix + node.name, _marks(node) + "class", ast.get_docstring(node))
                yield from _public(node.body, f"{prefix}{node.name}.", in_class=True)
            case ast.AnnAssign(target=ast.Name(id=name)) if _is_public(name):
                # A field's default is a parameter's default; a constant's value is what the twins are there to differ in.
                default = f" = {ast.unparse(node.value)}" if in_class and node.value else ""
                yield Entry(prefix + name, f"value{default}", _docstring_after(following))
            case ast.Assign(targets=targets):
                for name in [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]:
                    if _is_public(name):
                        yield Entry(prefix + name, "value", _docstring_after(following))
            case ast.If() | ast.Try():
                handlers = [handler.body for handler in getattr(node, "handlers", [])]
                for block in (node.body, *handlers, node.orelse):
                    yield from _public(block, prefix, in_class=in_class)
            case _:
                pass


def _is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Kind, parameter names, their order, kinds and defaults; annotations are the frameworks' own."""
    parameters = function.args
    for parameter in ast.walk(parameters):
        if isinstance(parameter, ast.arg):
            parameter.annotation = None
    kind = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    return f"{_marks(function)}{kind} ({ast.unparse(parameters)})"


def _marks(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    return "".join(f"@{text} " for text in decorators if text.partition("(")[0].rpartition(".")[2] in MARKS)


def _docstring_after(following: ast.stmt | None) -> str | None:
    match following:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
        case _:
            return None


# The twins themselves.


def test_the_twins_mirror_each_other() -> None:
    found = [difference for difference in differences(LEFT, RIGHT) if (difference.file, difference.name) not in EXCEPTIONS]
    assert not found, "\n".join(map(str, found))


def test_no_fewer_names_are_shared_than_before() -> None:
    """All others are exceptions. Raise the figure with what the twins come to share."""
    assert share(LEFT, RIGHT) >= LEAST_SHARE


def test_every_exception_still_stands_for_a_difference() -> None:
    found = {(difference.file, difference.name) for difference in differences(LEFT, RIGHT)}
    assert found >= EXCEPTIONS.keys()


def test_the_twins_hold_code() -> None:
    assert list(LEFT.rglob("*.py"))
    assert list(RIGHT.rglob("*.py"))


# The check itself, on small planted twins.

SOURCE = '''
"""Trains."""
import torch
from typing import Any

RATE: float = 0.1
"""Of learning."""

def train_step(model: Any, images: "torch.Tensor", *, rate: float = 0.1) -> float:
    """Update `model` once."""
    return _helper(model)

def evaluate(model: Any, *splits: str, **options: int) -> float:
    """Score."""

class Trainer:
    """Owns the model."""

    steps: int = 3
    """Per epoch."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def rate(self) -> float:
        """Of learning."""
        return 0.1

    def forward(self, x: Any) -> Any:
        """Logits."""
        return x

def _helper(model): ...
'''

Twins = Callable[[str], list[Difference]]


@pytest.fixture
def twins(tmp_path: Path) -> Twins:
    def plant(right: str) -> list[Difference]:
        for side, source in (("left", SOURCE), ("right", right)):
            (tmp_path / side).mkdir()
            (tmp_path / side / "train.py").write_text(source, encoding="utf-8")
        return differences(tmp_path / "left", tmp_path / "right")

    return plant


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("import torch", "import tensorflow as tf"),
        ('"torch.Tensor"', "tf.Tensor"),
        ("return x", "return tf.identity(x)"),
        ("RATE: float = 0.1", "RATE: float = 0.2"),
        ("RATE: float = 0.1", "RATE = 0.1"),
        ("def _helper(model): ...", "def _another(x, y): ..."),
        ("def forward(", "def call("),
        ("def evaluate(", "@tf.function\ndef evaluate("),
        ("class Trainer:", "class Trainer(keras.Model):"),
    ],
)
def test_what_only_the_framework_changes_is_no_difference(twins: Twins, before: str, after: str) -> None:
    assert twins(SOURCE.replace(before, after)) == []


@pytest.mark.parametrize(
    ("before", "after", "name", "what"),
    [
        ("def evaluate(", "def score(", "evaluate", "is missing in right"),
        ("def _helper(", "def helper(", "helper", "is missing in left"),
        ("RATE:", "SPEED:", "RATE", "is missing in right"),
        ("class Trainer:", "class Teacher:", "Trainer", "is missing in right"),
        ("    steps: int", "    stages: int", "Trainer.steps", "is missing in right"),
        ("def rate(", "def pace(", "Trainer.rate", "is missing in right"),
        ("images:", "pictures:", "train_step", "signature"),
        ("model: Any, images:", "images: Any, model:", "train_step", "signature"),
        (" *, rate", " rate", "train_step", "signature"),
        ("rate: float = 0.1)", "rate: float = 0.2)", "train_step", "signature"),
        ("rate: float = 0.1)", "rate: float)", "train_step", "signature"),
        ("*splits", "splits", "evaluate", "signature"),
        ("**options", "**others", "evaluate", "signature"),
        ("def evaluate", "async def evaluate", "evaluate", "signature"),
        ("(self, model: Any)", "(self, model: Any, rate=1)", "Trainer.__init__", "signature"),
        ("    @property\n", "", "Trainer.rate", "signature"),
        ("steps: int = 3", "steps: int = 4", "Trainer.steps", "signature"),
        ("class Trainer:", "@dataclass(frozen=True)\nclass Trainer:", "Trainer", "signature"),
        ('"""Trains."""', '"""Trains well."""', "", "docstring"),
        ("Update `model` once.", "Update it.", "train_step", "docstring"),
        ("Owns the model.", "Has the model.", "Trainer", "docstring"),
        ("Logits.", "Scores.", "Trainer.forward", "docstring"),
        ('"""Per epoch."""', "", "Trainer.steps", "docstring"),
        ('"""Score."""', "...", "evaluate", "docstring"),
    ],
)
def test_a_difference_is_found(twins: Twins, before: str, after: str, name: str, what: str) -> None:
    assert before in SOURCE
    found = twins(SOURCE.replace(before, after, 1))
    assert any(difference.name == name and difference.what.startswith(what) for difference in found), found


def test_another_order_of_functions_is_found(twins: Twins) -> None:
    start, end = SOURCE.index("def evaluate"), SOURCE.index("class Trainer")
    found = twins(SOURCE[:start] + SOURCE[end:] + SOURCE[start:end])
    assert [str(difference) for difference in found] == ["train.py: evaluate: stands where right has Trainer"]


def test_names_in_another_order_are_not_shared(twins: Twins, tmp_path: Path) -> None:
    start, end = SOURCE.index("def evaluate"), SOURCE.index("class Trainer")
    twins(SOURCE[:start] + SOURCE[end:] + SOURCE[start:end])
    names = 9  # the module, a constant, two functions, a class and four of its members
    assert share(tmp_path / "left", tmp_path / "left") == 1.0
    assert share(tmp_path / "left", tmp_path / "right") == (names - 1) / names


def test_another_order_of_methods_is_found(twins: Twins) -> None:
    start, end = SOURCE.index("    @property"), SOURCE.index("    def forward")
    after = SOURCE.index("def _helper")
    (found,) = twins(SOURCE[:start] + SOURCE[end:after] + SOURCE[start:end] + SOURCE[after:])
    assert found.name == "Trainer.rate"


def test_a_name_defined_under_a_condition_counts(twins: Twins) -> None:
    (found,) = twins(SOURCE + "try:\n    import x\nexcept ImportError:\n    def fallback(): ...\n")
    assert (found.name, found.what) == ("fallback", "is missing in left")


def test_a_file_on_one_side_only_is_found(tmp_path: Path) -> None:
    for file in ("left/parallel/ranks.py", "left/train.py", "right/train.py", "right/extra.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert [str(difference) for difference in differences(tmp_path / "left", tmp_path / "right")] == [
        "extra.py: the file: is missing in left",
        "parallel/ranks.py: the file: is missing in right",
    ]

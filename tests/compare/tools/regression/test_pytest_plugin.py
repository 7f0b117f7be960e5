"""The plug-in of pytest: what it records, how it judges, and callables in turn, in real processes of pytest."""

import json
import math
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_benchmark.storage.file import FileStorage
from scipy import special

from common.machine import interference
from compare.statistics import statistics
from compare.tools.regression import benchmark_files, benchmark_runs
from convtwins import pytest_plugin
from convtwins.pytest_plugin import Paired
from tests.compare.tools.regression import own_suite
from tests.compare.tools.regression.own_suite import FILES, SLOWER, notes_of, run_pytest
from tests.compare.tools.regression.repository import commit, initialised
from tests.support import processes, trees

RATIOS = [1.01, 0.99, 1.03, 1.0, 1.02]
BENCH = ("bench", "-q", "--benchmark-storage=file://stored")


def stored(folder: Path, marker: str = "", files: int = 5) -> Path:
    """A project, and so many stored files of its first commit."""
    repository = initialised(folder)
    suite = FILES["bench/test_work.py"].replace("@pytest.mark.benchmark", f"{marker}\n@pytest.mark.benchmark")
    commit(repository, "before", {**FILES, "bench/test_work.py": suite, ".gitignore": "__pycache__\n.*\nstored\n"})
    for number in range(files):
        run = json.dumps({"pair": number})
        run_pytest(repository, *BENCH, "--benchmark-autosave", CONVTWINS_RUN=run).succeeded()
    return repository


def test_it_repeats_names_and_bounds_of_the_suite_which_it_cannot_import() -> None:
    assert pytest_plugin.DISTURBED_FROM == interference.DISTURBED_FROM
    assert pytest_plugin.KEY == benchmark_files.MACHINE_KEY
    assert pytest_plugin.RUN_VARIABLE == benchmark_runs.RUN_VARIABLE
    assert pytest_plugin.METRICS == benchmark_files.STATISTICS


def test_it_is_imported_in_less_than_50_ms_and_brings_nothing_heavy() -> None:
    code = (
        "import sys, time, pytest; loaded = {*sys.modules}; begin = time.process_time(); import convtwins.pytest_plugin; "
        "print(time.process_time() - begin, *{name.split('.')[0] for name in {*sys.modules} - loaded})"
    )
    seconds, *modules = processes.python("-c", code).succeeded().stdout.split()
    assert float(seconds) < 0.05 and {*modules} <= {"convtwins", *sys.stdlib_module_names}


def test_a_slower_benchmark_fails_only_where_it_is_marked(tmp_path: Path) -> None:
    marked = stored(tmp_path / "marked", "@pytest.mark.convtwins(limit='10%')")
    done = run_pytest(marked, *BENCH).succeeded()
    assert "convtwins" not in done.stdout.rpartition("Legend")[2]  # its own commit is no stored baseline
    commit(marked, "slower", {"src/work.py": SLOWER})
    done = run_pytest(marked, *BENCH)
    lines = {line.split(":")[0]: line for line in done.stdout.splitlines() if " times " in line}
    assert done.exit_code == 1 and "convtwins: beside the stored baseline" in done.stdout
    assert "slower, FAILED" in lines["test_speed[parse]"] and lines["test_speed[parse]"].count("limit 10 %") == 1
    assert lines["test_speed[write]"].endswith("ok")
    unmarked = trees.write(marked, {"bench/test_work.py": FILES["bench/test_work.py"]})
    done = run_pytest(unmarked, *BENCH).succeeded()  # uncommitted changes beside the stored commit
    assert any(line.endswith("slower") for line in done.stdout.splitlines())


def test_a_gain_fails_where_the_marker_says_so_and_few_files_tell_nothing(tmp_path: Path) -> None:
    repository = stored(tmp_path / "project", "@pytest.mark.convtwins(fail_when_faster=True)", files=5)
    commit(repository, "faster", {"src/work.py": SLOWER.replace("1.2", "0.5")})
    done = run_pytest(repository, *BENCH)
    assert done.exit_code == 1 and "faster, FAILED" in done.stdout
    for file in sorted((repository / "stored").rglob("*.json"))[3:]:
        file.unlink()
    done = run_pytest(repository, *BENCH).succeeded()
    assert done.stdout.count("cannot tell: 3 of 5 stored files") == 2
    for file in (repository / "stored").rglob("*.json"):
        values = json.loads(file.read_text())
        values["machine_info"]["node"] = "another host"
        file.write_text(json.dumps(values))
    assert "stored files" not in run_pytest(repository, *BENCH).succeeded().stdout


def test_times_that_other_work_disturbed_are_counted_and_not_called_missing(tmp_path: Path) -> None:
    repository = stored(tmp_path / "project", files=6)
    commit(repository, "later", {"notes.txt": "later"})

    def disturb(benchmark: str, files: int) -> None:
        for file in sorted((repository / "stored").rglob("*.json"))[:files]:
            values = json.loads(file.read_text())
            for entry in values["benchmarks"]:
                if entry["name"] == benchmark:
                    entry["extra_info"]["convtwins"]["cores_taken"] = 0.5
            file.write_text(json.dumps(values))

    disturb("test_speed[parse]", 6)
    disturb("test_speed[write]", 2)
    trees.write(repository, {"bench/test_new.py": own_suite.SUITE.replace("test_speed", "test_new")})
    shown = run_pytest(repository, *BENCH).succeeded().stdout.splitlines()
    lines = {line.partition(": cannot tell, ")[0]: line for line in shown if "cannot tell" in line}
    assert "other work disturbed all 6 times" in lines["test_speed[parse]"]
    assert "no such benchmark" in lines["test_new[parse]"]
    (few,) = (line for line in shown if line.startswith("test_speed[write]: "))
    assert "cannot tell: 4 of 5 stored files, other work disturbed 2 more" in few


class Calls(list[str]):
    """A stand-in for modules of frameworks, which records what is waited for."""

    def torch(self, kind: str | None, used: Sequence[int] = (), **missing: None) -> Any:
        cuda = SimpleNamespace(
            is_initialized=lambda: bool(used),
            current_device=lambda: 1,
            device_count=lambda: 3,
            memory_reserved=lambda device: device in used,
            synchronize=lambda device: self.append(f"cuda {device}"),
        )
        accelerator = SimpleNamespace(
            is_available=lambda: kind is not None,
            current_accelerator=lambda: SimpleNamespace(type=kind),
            synchronize=lambda: self.append(f"any {kind}"),
        )
        mps = SimpleNamespace(is_available=lambda: kind == "mps")
        return SimpleNamespace(
            cuda=cuda,
            mps=SimpleNamespace(synchronize=lambda: self.append("old mps")),
            backends=SimpleNamespace(mps=mps),
            **{"accelerator": accelerator} | missing,
        )


@pytest.mark.parametrize(
    ("kind", "used", "missing", "expected"),
    [
        (None, [], {}, []),
        ("cuda", [], {}, []),
        ("cuda", [0, 1], {}, ["cuda 0", "cuda 1"]),
        ("cuda", [2], {}, ["cuda 1", "cuda 2"]),  # PYTORCH_NO_CUDA_MEMORY_CACHING=1: the current device reserves nothing
        ("xpu", [], {}, ["any xpu"]),
        ("mps", [], {}, ["any mps"]),
        ("mps", [], {"accelerator": None}, ["old mps"]),
        (None, [], {"accelerator": None}, []),
    ],
)
def test_devices_of_torch_that_this_process_uses_are_waited_for(
    kind: str | None, used: Sequence[int], missing: dict[str, None], expected: list[str]
) -> None:
    calls = Calls()
    pytest_plugin.synchronise({"torch": calls.torch(kind, used, **missing)})
    assert calls == expected


def cuda_that_finishes_later(pending: list[object]) -> Any:
    """A stand-in for PyTorch on one GPU. Each pending launch takes 10 ms, which only `synchronize` waits for."""

    def wait(device: int) -> None:
        time.sleep(0.01 * len(pending))
        pending.clear()

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 0,
        device_count=lambda: 1,
        memory_reserved=lambda device: 0,
        synchronize=wait,
    )
    return SimpleNamespace(cuda=cuda, accelerator=SimpleNamespace(is_available=lambda: False))


def test_work_that_a_call_leaves_to_a_device_counts() -> None:
    """Planted: calls that return before their device has finished."""
    pending = list[object]()
    jax = SimpleNamespace(block_until_ready=lambda result: time.sleep(result))
    tensorflow = SimpleNamespace(test=SimpleNamespace(experimental=SimpleNamespace(sync_devices=lambda: time.sleep(0.03))))
    alone = pytest_plugin.timed(lambda: 0.01, 3, {})
    assert pytest_plugin.timed(lambda: pending.append(None), 3, {"torch": cuda_that_finishes_later(pending)}) > 10 * alone
    assert pytest_plugin.timed(lambda: 0.01, 3, {"jax": jax}) > 10 * alone
    assert pytest_plugin.timed(lambda: 0.01, 3, {"tensorflow": tensorflow}) > 10 * alone


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "tensorflow"])
def test_callables_of_a_framework_take_turns(tmp_path: Path, module: str) -> None:
    suite = f"""
from {module} import ones

def test_it(paired):
    times = paired(lambda: ones((64, 64)) @ ones((64, 64)), lambda: ones((64, 64)) @ ones((64, 64)), turns=3)
    assert times.ratio > 0.0 and len(times.new_seconds) == 3
"""
    trees.write(tmp_path, {"test_it.py": suite})
    run_pytest(tmp_path, "test_it.py", "-q", "-W", "ignore").succeeded()


WHOLE = {
    "machine_info": {"node": platform.node(), "python_version": platform.python_version()},
    "commit_info": {"id": "a" * 40, "dirty": False},
    "benchmarks": [{"fullname": "a", "stats": dict.fromkeys(pytest_plugin.METRICS, 1.0), "extra_info": {}}],
    "datetime": "2026-01-01T00:00:00",
}
ODD = {
    "no datetime": {key: value for key, value in WHOLE.items() if key != "datetime"},
    "a list": [1],
    "a number as the commit": WHOLE | {"commit_info": 3},
    "a list as the id of the commit": WHOLE | {"commit_info": {"id": []}},
    "no benchmarks": WHOLE | {"benchmarks": None},
    "no name": WHOLE | {"benchmarks": [{"stats": dict.fromkeys(pytest_plugin.METRICS, 1.0)}]},
    "no minimum": WHOLE | {"benchmarks": [{"fullname": "a", "stats": {"median": 1.0}}]},
    "words": WHOLE | {"benchmarks": [{"fullname": "a", "stats": dict.fromkeys(pytest_plugin.METRICS, "1.5")}]},
    "a large integer": WHOLE | {"benchmarks": [{"fullname": "a", "stats": dict.fromkeys(pytest_plugin.METRICS, 10**400)}]},
    "words as cores": WHOLE | {"benchmarks": [WHOLE["benchmarks"][0] | {"extra_info": {"convtwins": {"cores_taken": "many"}}}]},
}


def test_odd_stored_files_are_named_and_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "stored"
    contents = [*map(json.dumps, [WHOLE, *ODD.values()]), "{", 100_000 * "[", "not json"]
    trees.write(folder, {f"{number:04}_a.json": content for number, content in enumerate(contents, 1)})
    trees.write(folder, {"notes.json": "{}"})  # pytest-benchmark passes it over, too
    files, odd = pytest_plugin.stored_files(FileStorage(folder, logger=None))
    assert files == [WHOLE] and [path.name[:4] for path in odd] == [f"{number:04}" for number in range(2, len(contents) + 1)]
    trees.write(tmp_path, {"test_a.py": "def test_a(benchmark):\n    benchmark.pedantic(sum, args=([1],))\n"})
    done = run_pytest(tmp_path, "test_a.py", "-q", f"--benchmark-storage=file://{folder}").succeeded()
    assert done.stdout.count("is no whole file of pytest-benchmark") == len(odd) and "INTERNALERROR" not in done.output


def test_only_the_newest_stored_files_are_read(tmp_path: Path) -> None:
    trees.write(tmp_path / "here", {f"{number:04}_a.json": WHOLE | {"number": number} for number in range(1, 121)})
    files, odd = pytest_plugin.stored_files(FileStorage(tmp_path, logger=None))
    assert [file["number"] for file in files] == [*range(21, 121)] and not odd


@pytest.mark.parametrize(
    "marker", ["limit='much'", "limit=-1", "limit=5", "limit='5'", "metric='median2'", "threshold=1", "'5%'"]
)
def test_a_marker_that_cannot_be_read_ends_the_session(tmp_path: Path, marker: str) -> None:
    trees.write(tmp_path, {"test_a.py": f"import pytest\n@pytest.mark.convtwins({marker})\ndef test_a():\n    pass\n"})
    done = run_pytest(tmp_path, "test_a.py", "-q")
    assert done.exit_code != 0 and "Received" in done.output and "convtwins takes limit" in done.output


MARKED = """
import pytest
pytestmark = pytest.mark.convtwins(limit="10%")
@pytest.mark.convtwins(metric="min")
def test_of_both(benchmark):
    benchmark.pedantic(sum, args=([1],))
def test_of_the_module(benchmark):
    benchmark.pedantic(sum, args=([1],))
"""


def test_markers_add_up_and_say_only_what_is_written(tmp_path: Path) -> None:
    metric_alone = MARKED.replace('pytestmark = pytest.mark.convtwins(limit="10%")', "")
    trees.write(tmp_path, {"test_a.py": MARKED, "test_b.py": metric_alone})
    run_pytest(tmp_path, "test_a.py", "test_b.py", "-q", "--benchmark-json=a.json").succeeded()
    benchmarks = json.loads((tmp_path / "a.json").read_text())["benchmarks"]
    notes = {each["fullname"]: each["extra_info"]["convtwins"] for each in benchmarks}
    written = {
        name: {key: value for key, value in each.items() if key in ("limit", "metric", "fail_when_faster", "marked")}
        for name, each in notes.items()
    }
    assert written == {
        "test_a.py::test_of_both": {"limit": 0.1, "metric": "min", "marked": True},
        "test_a.py::test_of_the_module": {"limit": 0.1, "marked": True},
        "test_b.py::test_of_both": {"metric": "min", "marked": True},
        "test_b.py::test_of_the_module": {},
    }
    # The limit of the command counts where no marker has one.
    limits = {name: subject.limit for name, subject in benchmark_files.read(tmp_path / "a.json").subjects.items()}
    assert limits == {"test_a.py::test_of_both": 0.1, "test_a.py::test_of_the_module": 0.1} | dict.fromkeys(
        ["test_b.py::test_of_both", "test_b.py::test_of_the_module"]
    )


def test_it_records_what_other_work_took_and_leaves_what_a_user_writes(tmp_path: Path) -> None:
    suite = "def test_a(benchmark):\n    benchmark.extra_info['mine'] = 1\n    benchmark.pedantic(sum, args=([1],))\n"
    trees.write(tmp_path, {"test_a.py": suite + "\ndef test_b(benchmark):\n    benchmark(sum, [1])\n"})
    run = json.dumps({"side": "head", "pair": 3, "place": 0})
    run_pytest(tmp_path, "test_a.py", "-q", "--benchmark-json=a.json", CONVTWINS_RUN=run).succeeded()
    notes = notes_of(tmp_path / "a.json")
    assert [each["order"] for each in notes.values()] == [0, 1]
    assert all(each["cores_taken"] >= 0.0 and each["pair"] == 3 and each["side"] == "head" for each in notes.values())
    first, _ = json.loads((tmp_path / "a.json").read_text())["benchmarks"]
    assert first["extra_info"]["mine"] == 1
    done = run_pytest(tmp_path, "test_a.py", "-q", "-p", "no:benchmark")  # its tests then lack their fixture, and no more
    assert done.exit_code == 1 and "INTERNALERROR" not in done.output and "fixture 'benchmark' not found" in done.output


def test_other_work_is_what_the_machine_did_beyond_this_process(tmp_path: Path) -> None:
    before = pytest_plugin.CpuUsage(wall=0.0, process_seconds=0.0, busy=0.0, stolen=0.0)
    cores = float((len(pytest_plugin.os.sched_getaffinity(0)) and pytest_plugin.os.cpu_count()) or 1)
    alone = pytest_plugin.CpuUsage(wall=10.0, process_seconds=10.0, busy=10.0, stolen=0.0)
    assert alone.taken(before) == (0.0, 0.0)
    full = pytest_plugin.CpuUsage(wall=10.0, process_seconds=7.0, busy=10.0 * cores, stolen=1.0)
    taken = full.taken(before)
    assert taken is not None and taken == (pytest.approx(0.3), pytest.approx(0.1))
    assert pytest_plugin.usage_until_now(tmp_path) is None  # a system without /proc


def test_the_interval_of_callables_in_turn_is_that_of_the_mean_over_turns_or_over_processes() -> None:
    paired = Paired([1.0] * 5, RATIOS, (0.5, 0.6))
    shown = statistics.paired_ratio([(ratio, 1.0) for ratio in RATIOS], one_look=True)
    assert shown is not None
    assert (paired.ratio, *paired.interval) == pytest.approx((shown.value, shown.low, shown.high))
    fresh = Paired([1.0] * 5, RATIOS, (0.5, 0.6), processes=5)
    assert (fresh.ratio, fresh.interval) == (paired.ratio, paired.interval)
    paired.assert_not_slower("5%")
    for limit in (5, "5", "-5%"):  # 500 % would let everything pass
        with pytest.raises(ValueError, match="percent sign"):
            paired.assert_not_slower(limit)
    with pytest.raises(AssertionError, match="cannot tell"):
        paired.assert_not_slower(0.01)
    with pytest.raises(AssertionError, match="slower"):
        Paired([1.0] * 5, [1.2 * ratio for ratio in RATIOS], (1.0, 1.0)).assert_not_slower("5%")
    assert math.isnan(Paired([1.0], [1.0], (1.0, 1.0)).interval[0])


def test_a_failed_assertion_shows_the_line_of_the_test(tmp_path: Path) -> None:
    suite = "def test_it(paired):\n    paired(lambda: None, lambda: sum(range(1000)), turns=3).assert_not_slower('5%')\n"
    trees.write(tmp_path, {"test_it.py": suite})
    done = run_pytest(tmp_path, "test_it.py", "-q")
    assert done.exit_code == 1 and "test_it.py:2: AssertionError" in done.stdout and "pytest_plugin.py" not in done.stdout


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 19, 20, 99, 400])
def test_students_t_is_that_of_scipy(freedom: int) -> None:
    assert pytest_plugin.student_quantile(freedom) == pytest.approx(special.stdtrit(freedom, 0.975), rel=1e-10)
    for t in (0.0, 0.3, 1.0, 2.5, 12.0, 1e6):
        outside = 2.0 * special.stdtr(freedom, -t)
        assert 1.0 - pytest_plugin.student_within(t, freedom) == pytest.approx(outside, rel=1e-9, abs=1e-13)


def test_no_package_is_imported_to_judge() -> None:
    imports = "import sys; from convtwins.pytest_plugin import Paired; "
    code = f"{imports}Paired([1.0] * 5, [1.1] * 5, (1.0, 1.0)); print('scipy' in sys.modules)"
    assert processes.python("-c", code).succeeded().stdout.strip() == "False"


PAIRED = """
import os
import time

def fast():
    time.sleep(0.006)

def slow():
    time.sleep(0.012)

CALLS = []

def test_here(paired):
    def new():
        time.sleep(0.0 if CALLS else 0.3)  # it compiles
        CALLS.append("new")
        slow()
    found = paired(fast, new, turns=4)
    assert found.ratio > 1.3 and found.processes == 0 and len(found.new_seconds) == 4
    assert found.first_calls[1] > 0.3 > min(found.new_seconds)

def test_in_processes(paired):
    found = paired(lambda: slow(), lambda: fast(), processes=2, turns=2)
    assert found.ratio < 0.8 and found.processes == 2 and len(found.new_seconds) == 2
    found.assert_not_slower("500%")
"""


OPTION = """
def pytest_addoption(parser):
    parser.addoption("--mydata")
"""
NEEDS = """
import time

def test_it(paired, request):
    assert request.config.option.mydata == "x", "no data"
    found = paired(lambda: time.sleep(0.006), lambda: time.sleep(0.006), processes=2, turns=2)
    assert found.processes == 2
"""
FAILS_FRESH = """
import os

def test_it(paired):
    if "CONVTWINS_PAIRED" in os.environ:
        raise ValueError("no such device")
    paired(int, int, processes=2, turns=2)
"""


def test_a_fresh_process_gets_the_options_of_the_session_and_its_error_is_named(tmp_path: Path) -> None:
    trees.write(tmp_path, {"conftest.py": OPTION, "test_needs.py": NEEDS, "test_fails.py": FAILS_FRESH})
    words = ("test_needs.py", "-k", "test_it", "--mydata", "x", "--benchmark-json", "a.json", "-q")
    run_pytest(tmp_path, *words).succeeded()
    done = run_pytest(tmp_path, "test_fails.py", "-q")
    assert done.exit_code == 1 and "RuntimeError" in done.stdout and "ValueError: no such device" in done.stdout


def test_a_slow_callable_is_called_no_more_often_than_its_own_turns_need() -> None:
    calls = 0

    def slow() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.006)

    olds, news, _ = pytest_plugin.take_turns(lambda: None, slow, 3)
    assert calls == 1 + 1 + 3  # first call, how many calls a turn needs, turns
    assert len(olds) == len(news) == 3 and min(news) > 100 * max(olds)


def test_callables_take_turns_here_or_in_fresh_processes_and_are_saved(tmp_path: Path) -> None:
    trees.write(tmp_path, {"test_paired.py": PAIRED})
    run_pytest(tmp_path, "test_paired.py", "-q", "--benchmark-json=a.json").succeeded()
    notes = notes_of(tmp_path / "a.json")
    assert notes["test_here"]["paired"]["ratio"] > 1.3 and notes["test_in_processes"]["paired"]["processes"] == 2
    for each in json.loads((tmp_path / "a.json").read_text())["benchmarks"]:
        assert each["stats"]["rounds"] == len(each["extra_info"]["convtwins"]["paired"]["old_seconds"])
    run_pytest(tmp_path, "test_paired.py", "-q", "--benchmark-skip").succeeded()

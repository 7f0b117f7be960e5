import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from common import spec
from common.artifacts import results
from common.processes import signals
from common.processes.process_spec import RESERVED_VARIABLES
from common.watching import watchdog
from compare.cli import errors
from compare.cli.interrupt import Interrupted, interruptible
from compare.comparison import executor
from compare.results import store
from compare.running import launch, matrix
from compare.running.contestants import Contestant
from compare.running.twins import Twins
from tests.ranks import assert_gone, runs
from tests.signalled import signalled_at_start
from tests.support import processes, trees
from tests.support.refusals import refused

SCRIPTED = Contestant.plain("scripted")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A twin named `scripted`, found in the temporary folder; write its code to the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(launch.FRAMEWORKS, "scripted", "scripted_twin")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "scripted_twin.py"


def test_describe_returns_what_the_twin_prints_and_asks_once(script: Path) -> None:
    script.write_text('import os; print(\'{"framework": "scripted", "pid": \' + str(os.getpid()) + \'}\')')
    twins = Twins(["scripted"])
    first = twins.describe("scripted")
    assert first["framework"] == "scripted"
    assert twins.describe("scripted") == first


def test_describe_names_the_exit_and_the_last_lines_of_a_twin_that_fails(script: Path) -> None:
    script.write_text("raise ImportError('no such library')")
    with refused(errors.LaunchError, field="scripted", names=["exit code 1", "python -m scripted_twin describe"]) as caught:
        Twins(["scripted"]).describe("scripted")
    assert str(caught.error).endswith("ImportError: no such library")


@pytest.mark.parametrize("printed", ["not json", "[1]", ""])
def test_describe_refuses_what_is_no_json_object(script: Path, printed: str) -> None:
    script.write_text(f"print({printed!r})")
    with refused(errors.LaunchError, field="scripted", received=repr(f"{printed}\n"), names=["JSON object"]):
        Twins(["scripted"]).describe("scripted")


def test_call_returns_the_exit_code_and_logs_both_streams(script: Path, tmp_path: Path) -> None:
    script.write_text("import sys; print('out', sys.argv[1:]); print('err', file=sys.stderr); sys.exit(4)")
    assert launch.call(SCRIPTED, ["run", "x y"], log=tmp_path / "deep" / "log.txt") == 4
    assert sorted((tmp_path / "deep" / "log.txt").read_text().splitlines()) == ["err", "out ['run', 'x y']"]


def test_call_returns_the_signal_that_ended_the_twin_as_a_negative_number(script: Path, tmp_path: Path) -> None:
    script.write_text("import os; os.kill(os.getpid(), 9)")
    assert launch.call(SCRIPTED, ["run"], log=tmp_path / "log.txt") == -9


RESERVED = (
    "OMP_NUM_THREADS MKL_NUM_THREADS TF_CONFIG RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE CONVTWINS_RUN_SECRET "
    "MASTER_ADDR KERAS_BACKEND GOMP_CPU_AFFINITY KMP_BLOCKTIME DNNL_MAX_CPU_ISA ONEDNN_VERBOSE OPENBLAS_NUM_THREADS "
    "GOTO_NUM_THREADS BLIS_NUM_THREADS VECLIB_MAXIMUM_THREADS NUMEXPR_NUM_THREADS LIBXSMM_TARGET "
    "NPY_DISABLE_CPU_FEATURES CUDNN_LOGINFO_DBG CUBLAS_WORKSPACE_CONFIG CUBLASLT_LOG_LEVEL TORCH_LOGS "
    "TORCHINDUCTOR_FREEZING TORCHDYNAMO_DISABLE PYTORCH_CUDA_ALLOC_CONF ATEN_CPU_CAPABILITY XLA_FLAGS JAX_PLATFORMS "
    "ACL_THREADS MALLOC_ARENA_MAX GLIBC_TUNABLES CUDA_LAUNCH_BLOCKING NVIDIA_TF32_OVERRIDE TORCHELASTIC_RUN_ID PMI_RANK "
    "OMPI_COMM_WORLD_RANK GROUP_RANK ROLE_RANK MASTER_PORT"
)


def test_a_twin_inherits_no_thread_or_rank_settings_of_the_shell(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in RESERVED.split():
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HARMLESS", "kept")
    assert not RESERVED_VARIABLES.fullmatch("TFDS_DATA_DIR") and RESERVED_VARIABLES.fullmatch("LD_PRELOAD")
    script.write_text(f"import os; print([n for n in {RESERVED.split()} if n in os.environ], os.environ['HARMLESS'])")
    launch.call(SCRIPTED, ["run"], log=tmp_path / "log.txt")
    assert (tmp_path / "log.txt").read_text() == "[] kept\n"


def test_the_project_is_found_from_any_working_directory_and_before_a_folder_of_the_same_name(
    script: Path, tmp_path: Path
) -> None:
    trees.write(tmp_path, {"common/__init__.py": "raise ImportError('the wrong one')"})
    script.write_text("import common.spec, os; print(os.getcwd())")
    assert launch.call(SCRIPTED, ["run"], log=tmp_path / "log.txt") == 0
    assert (tmp_path / "log.txt").read_text() == f"{tmp_path}\n"


def test_a_file_of_the_working_directory_is_taken_for_no_library_but_a_model_is_found_there(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = dict.fromkeys(("numpy.py", "json.py"), "raise SystemExit('planted')")
    monkeypatch.chdir(trees.write(tmp_path / "received", {**planted, "my_model.py": ""}))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:")  # an empty entry means the working directory to Python
    script.write_text("import common, json, numpy, my_model; print(numpy.__version__)")
    assert launch.call(SCRIPTED, ["run"], log=tmp_path / "log.txt") == 0, (tmp_path / "log.txt").read_text()


_WITH_CHILDREN = """
import subprocess, sys, time, pathlib, os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
pids = [subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=own).pid for own in (False, True)]
time.sleep(0.5)
pathlib.Path("pids.tmp").write_text(" ".join(map(str, [os.getpid(), *pids])))
os.replace("pids.tmp", "pids")
time.sleep(600)
"""


def test_stop_ends_a_stubborn_twin_and_children_in_other_sessions(script: Path, tmp_path: Path) -> None:
    script.write_text(_WITH_CHILDREN)
    process = launch.start(SCRIPTED, ["run"], log=tmp_path / "log.txt")
    pids = _wait_for_pids(tmp_path / "pids")
    launch.stop(process, grace_seconds=0.3)
    assert process.returncode == -9
    assert_gone(pids)
    launch.stop(process)  # does nothing twice


def test_what_a_killed_twin_started_is_ended_though_it_leads_a_group(script: Path, tmp_path: Path) -> None:
    script.write_text(
        """
import os, pathlib, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
pathlib.Path("pids").write_text(str(child.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    assert launch.call(SCRIPTED, ["run"], log=tmp_path / "log.txt") == -signal.SIGKILL
    assert_gone(_wait_for_pids(tmp_path / "pids"))


@pytest.mark.skipif(sys.platform != "linux", reason="a kernel's service of Linux")
def test_a_twin_dies_with_a_parent_that_is_killed(script: Path, tmp_path: Path) -> None:
    script.write_text("import time, os, pathlib; pathlib.Path('pids').write_text(str(os.getpid()) + ' '); time.sleep(600)")
    with _parent(tmp_path):
        pids = _wait_for_pids(tmp_path / "pids")
    assert_gone(pids)


KILLED = """
import os, signal
from pathlib import Path
from compare.running import launch
from compare.running.contestants import Contestant
launch.FRAMEWORKS["scripted"] = "scripted_twin"
Path("pid").write_text(str({start}.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A launcher that is killed as soon as it has started a process."""


@pytest.mark.skipif(sys.platform != "linux", reason="a kernel's service of Linux")
@pytest.mark.parametrize(
    "start",
    [
        'launch.start(Contestant.plain("scripted"), ["run"], log=Path("log.txt"))',
        'launch.start_suite_module("scripted_twin")',
    ],
    ids=["twin", "module of the suite"],
)
def test_a_process_dies_with_a_launcher_that_is_killed_as_soon_as_it_has_started_it(
    script: Path, tmp_path: Path, start: str
) -> None:
    script.write_text("import time; time.sleep(600)")
    path = f"{launch.PROJECT_ROOT}:{tmp_path}"
    done = processes.python("-c", KILLED.format(start=start), folder=tmp_path, PYTHONPATH=path)
    assert done.exit_code == -signal.SIGKILL
    assert_gone([int((tmp_path / "pid").read_text())])


LITTERING = """
import os, pathlib, signal, tempfile, time
folder = pathlib.Path(tempfile.gettempdir())
(folder / "__autograph_generated_file.py").touch()
(folder / "dask-scratch-space").mkdir()
pathlib.Path("temporary.tmp").write_text(f"{folder} {oct(folder.stat().st_mode)}")
os.replace("temporary.tmp", "temporary")
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this process, which is empty."""
    folder = trees.write(tmp_path / "temporary files", {})
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # a setting of that module's: it reads TMPDIR only once
    return folder


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["ends", "is killed"])
def test_a_twin_has_a_temporary_folder_of_its_own_which_goes_with_it(
    script: Path, tmp_path: Path, temporary: Path, end: str
) -> None:
    script.write_text(LITTERING + end)
    launch.call(SCRIPTED, ["run"], log=tmp_path / "log.txt")
    folder, mode = (tmp_path / "temporary").read_text().rsplit(maxsplit=1)
    assert Path(folder).parent == temporary
    assert mode == "0o40700"
    assert list(temporary.iterdir()) == []


def test_each_of_two_twins_keeps_its_temporary_folder_while_it_runs(script: Path, tmp_path: Path, temporary: Path) -> None:
    script.write_text("import time; time.sleep(600)")
    first, second = (launch.start(SCRIPTED, ["run"], log=tmp_path / "log.txt") for _ in range(2))
    assert len(list(temporary.iterdir())) == 2
    launch.stop(first)
    assert [second.temporary.path] == list(temporary.iterdir())
    launch.stop(second)
    assert list(temporary.iterdir()) == []


def test_a_twin_that_cannot_be_started_leaves_no_temporary_folder(tmp_path: Path, temporary: Path) -> None:
    missing = Contestant(name="missing", twin="pytorch", python=str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        launch.start(missing, ["run"], log=tmp_path / "log.txt")
    assert list(temporary.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="a kernel's service of Linux")
def test_the_next_command_removes_what_a_killed_one_left(script: Path, tmp_path: Path, temporary: Path) -> None:
    script.write_text(LITTERING + "time.sleep(600)")
    with _parent(tmp_path, TMPDIR=str(temporary)):
        left = Path(_wait_for(tmp_path / "temporary").rsplit(maxsplit=1)[0])
    assert (left / "__autograph_generated_file.py").exists()
    script.write_text("")
    launch.call(SCRIPTED, ["run"], log=tmp_path / "log.txt")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("code", "words"), [(1, "exit code 1"), (-9, "killed by SIGKILL"), (-200, "killed by signal 200")])
def test_exit_words_name_the_signal(code: int, words: str) -> None:
    assert launch.describe_exit(code) == words


PARENT = """
import time
from pathlib import Path
from compare.running import launch
from compare.running.contestants import Contestant
from compare.running.twins import Twins
launch.FRAMEWORKS["scripted"] = "scripted_twin"
launch.start(Contestant.plain("scripted"), ["run"], log=Path("log.txt"))
time.sleep(600)
"""


def _parent(folder: Path, **variables: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A process that starts the twin, and is killed at the end of the block."""
    path = f"{launch.PROJECT_ROOT}:{folder}"
    return processes.started([sys.executable, "-c", PARENT], folder=folder, variables={"PYTHONPATH": path, **variables})


def _wait_for(path: Path) -> str:
    """What the twin has written to a file, once it has."""
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline, "the twin did not start"
        time.sleep(0.05)
    return path.read_text()


def _wait_for_pids(path: Path) -> list[int]:
    return [int(word) for word in _wait_for(path).split()]


@pytest.mark.parametrize("source", ["import time; time.sleep(600)", "import subprocess as s; s.run(['sleep', '600'])"])
def test_a_twin_that_uses_no_time_hangs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(watchdog, "LOADING_SECONDS", 1.0)  # of a process that has not begun yet: ten minutes
    script.write_text(source)
    log = tmp_path / "log.txt"
    assert launch.call(SCRIPTED, ["run"], log=log, hang_seconds=1.0) in (-signal.SIGTERM, -signal.SIGKILL)
    assert log.read_text() == "the process hangs: no progress for 0.9 s; see stacks-rank0.txt\n"
    assert (tmp_path / "log.stacks" / "stacks-rank0.txt").read_text() == "It had not begun to answer yet: no stacks.\n"


ATTACHED = "import time; from common.machine import heartbeat as h; h.attach(); h.count_sync_point(); h.count_step();"
"""A twin that has begun to train."""


def test_a_twin_that_hangs_after_a_step_leaves_its_stacks(script: Path, tmp_path: Path) -> None:
    script.write_text(f"{ATTACHED}\ndef wait(): time.sleep(600)\nwait()")
    log = tmp_path / "log.txt"
    launch.call(SCRIPTED, ["run"], log=log, hang_seconds=1.0)
    words = "the process hangs in wait (scripted_twin.py:2) after step 1: no progress for 0.9 s; see stacks-rank0.txt\n"
    assert log.read_text() == words
    assert "line 2 in wait" in (tmp_path / "log.stacks" / "stacks-rank0.txt").read_text()


def test_a_twin_that_sigkill_does_not_end_is_left_behind(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control group's freezer holds a process: here a SIGKILL that does nothing stands for it."""
    script.write_text("import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)")
    process = launch.start(SCRIPTED, ["run"], log=tmp_path / "log")
    try:
        assert _wait_for(tmp_path / "log") == "ready\n"
        with monkeypatch.context() as held:
            held.setattr(launch, "_signal_all", lambda *_: None)
            launch.stop(process, grace_seconds=0.1, kill_seconds=0.2)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("begun", ["import time;", ATTACHED], ids=["loads", "trains"])
def test_a_twin_that_works_is_waited_for(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str) -> None:
    monkeypatch.setattr(watchdog, "LOADING_SECONDS", 1.0)  # of a process that has not begun yet: ten minutes
    script.write_text(f"{begun} end = time.time() + 4\nwhile time.time() < end: pass")
    assert launch.call(SCRIPTED, ["run"], log=tmp_path / "log.txt", hang_seconds=1.0) == 0


def _calls(folder: Path, *names: str) -> list[launch.Call]:
    return [launch.Call(SCRIPTED, [name], folder / f"{name}.txt") for name in reversed(names)]


def test_two_twins_work_side_by_side_and_a_third_waits_for_what_it_needs(script: Path, tmp_path: Path) -> None:
    meeting = "while not pathlib.Path({'first': 'second', 'second': 'first'}[name]).exists(): time.sleep(0.01)"
    script.write_text(
        f"import pathlib, sys, time; name = sys.argv[1]; pathlib.Path(name).touch()\nif name == 'third': sys.exit(3)\n{meeting}"
    )
    waiting, ended = _calls(tmp_path, "first", "second", "third"), dict[str, int]()

    def following() -> launch.Call | None:
        if not waiting or (len(waiting) == 1 and not {"first", "second"} <= set(ended)):
            return None
        return waiting.pop()

    launch.call_all(following, lambda call, code: ended.update({call.arguments[0]: code}), most_parallel=2)
    assert ended == {"first": 0, "second": 0, "third": 3}


def test_no_twin_is_left_running_where_another_ends_all(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import os, pathlib, sys, time\n"
        "if sys.argv[1] == 'short':\n"
        "    while not pathlib.Path('pid').exists(): time.sleep(0.01)\n"
        "    sys.exit(5)\n"
        "pathlib.Path('new').write_text(str(os.getpid())); os.replace('new', 'pid'); time.sleep(600)"
    )
    waiting = _calls(tmp_path, "long", "short")

    def ended(call: launch.Call, code: int) -> None:
        raise errors.LaunchError(f"{call.arguments[0]} ended with {code}")

    with refused(errors.LaunchError, names=["short", "5"]):
        launch.call_all(lambda: waiting.pop() if waiting else None, ended, most_parallel=2)
    assert not runs(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("number", signals.TERMINATION_SIGNALS)
@pytest.mark.parametrize("start", ["call", "describe", "execute"])
def test_no_twin_is_left_by_a_signal_that_comes_while_it_is_started(
    script: Path, tmp_path: Path, start: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text("import time; time.sleep(600)")
    row = matrix.build_row("scripted", SCRIPTED, spec.build({}))
    starts = {
        "call": lambda: launch.call(SCRIPTED, ["run"], log=tmp_path / "log.txt"),
        "describe": lambda: Twins(["scripted"]).describe("scripted"),
        "execute": lambda: executor.execute(SCRIPTED, row, 0, tmp_path, lambda events: None),
    }
    with interruptible():
        started = signalled_at_start(monkeypatch, number)
        begun = time.monotonic()
        with pytest.raises(Interrupted):
            starts[start]()
    assert time.monotonic() - begun < 300  # it was ended, not waited for
    assert len(started) == 1 and not psutil.pid_exists(started[0])
    if start == "execute":
        assert results.load(store.run_folder(tmp_path, row.id, 0) / results.RESULT_FILE).reason == "interrupted"

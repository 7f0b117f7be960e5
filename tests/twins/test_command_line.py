"""`python -m <twin>` as its users and `compare` meet it: processes, exit codes, and the files that they leave."""

import gzip
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.numpy

from common import spec
from common.artifacts import event_log, results
from common.artifacts.schema import RunResult
from common.data import batches, sources
from common.machine import machine
from common.machine.interference import LEAST_TIMED_SECONDS
from common.models import architectures, weights
from common.models.sharding import shard
from common.spec import Spec, SpecError
from tests.support import processes
from tests.support.processes import Finished
from tests.twins import oracles
from tests.twins.runs import ENDLESS, SECONDS, Run, wait_until_gone

SETTINGS: dict[str, Any] = {
    "model": "tests.twins.own_plain_model",
    "data": {"image_size": 12, "limit": 64, "seed": 3},
    "optimizer": {"learning_rate": 0.02},
    "augmentation": {"horizontal_flip": True, "shift_px": 2},
    "global_batch_size": 30,  # 30, 30 and 4
    "epochs": 12,  # a second of training in parallel modes, or what it used of its cores is not judged
    "precision": "float64",
    "cores": min(2, machine.available_cores()),
    "batch_norm_statistics": "synchronised",
}
MODES: dict[str, dict[str, Any]] = {
    "serial": {"cores": 1, "profile_steps": 3},
    "workers": {"cores": 1, "input": "workers", "workers": 2},
    "dask": {"cores": 1, "input": "dask", "workers": 2, "dask": {"chunk_images": 20}},
    "data_parallel": {"mode": "data_parallel", "replicas": 2, "profile_steps": 3},
    "multi_process": {"mode": "multi_process", "replicas": 2, "profile_steps": 3},
    "sharded_data_parallel": {"mode": "sharded_data_parallel", "replicas": 2, "profile_steps": 3},
    "parameter_server": {"mode": "parameter_server", "replicas": 2, "profile_steps": 3},
    "tensor_parallel": {"mode": "tensor_parallel", "replicas": 2},
    "hybrid_tensor": {"mode": "hybrid", "replicas": 4},
}
DASK = {"input": "dask", "workers": 1, "dask": {"chunk_images": 20}, "profile_steps": 0}
WITH_DASK = {
    f"dask, {mode}": MODES[mode] | DASK
    for mode in (
        "data_parallel",
        "multi_process",
        "sharded_data_parallel",
        "parameter_server",
        "tensor_parallel",
        "hybrid_tensor",
    )
}
MODES |= WITH_DASK
SLOW = (
    *("workers", "dask", "data_parallel", "sharded_data_parallel", "parameter_server", "tensor_parallel", "hybrid_tensor"),
    *(name for name in WITH_DASK if name != "dask, multi_process"),
)
SHARED = ("dask, multi_process",)
"""Quick with PyTorch alone: Dask's server and its chunks are the same code in both twins."""
NAMES = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else pytest.mark.shared if name in SHARED else ())
    for name in MODES
]
REFUSED = {"data": {"source": "tests/twins"}}  # a folder that holds no image


class Started(Run):
    settings = SETTINGS

    def watch_sockets(self) -> None:
        """Until it ends: `self.listening`, where its sockets listened the last time, by process and port."""
        self.listening: dict[tuple[int, int], str] = {}
        while self.process.poll() is None:
            with suppress(psutil.NoSuchProcess):  # some end meanwhile
                first = psutil.Process(self.process.pid)
                for process in (first, *first.children(recursive=True)):
                    for connection in process.net_connections():
                        if connection.status == psutil.CONN_LISTEN:
                            address, port = connection.laddr
                            if place := address if address in LOCAL else _shown(process.pid, port):
                                self.listening[process.pid, port] = place
            time.sleep(0.3)


LOCAL = ("127.0.0.1", "::1")


def _shown(pid: int, port: int) -> str:
    """How `ss` shows a socket, which alone tells the interface that it is bound to. Empty: it is gone."""
    shown = processes.run(["ss", "-Hltnp"]).succeeded().stdout.splitlines()
    return "".join(line for line in shown if f":{port} " in line and f"pid={pid}," in line)


@pytest.fixture
def start(begin: Any, tmp_path: Path) -> Any:
    return lambda **fields: begin(tmp_path, fields, kind=Started)  # pyright: ignore[reportUnknownLambdaType]


@pytest.fixture(scope="module")
def ended(framework: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Started, RunResult]]:
    """The same training in every mode, and a run that fails, two at a time: each has processes enough for all cores.

    Those of slow tests start only if they are asked for.
    """

    def run(name: str, fields: dict[str, Any]) -> tuple[Started, RunResult]:
        with Started(framework, tmp_path_factory.mktemp(name), fields) as one:
            if name == "multi_process":
                one.watch_sockets()
            result = one.end()
        assert one.process.returncode == (4 if name == "refused" else 0), one.log
        return one, result

    class Runs(dict[str, tuple[Started, RunResult]]):
        def __missing__(self, name: str) -> tuple[Started, RunResult]:
            self[name] = run(name, MODES[name])
            return self[name]

    later = {*SLOW, *(SHARED if framework == "tensorflow" else ())}
    cases = {**{name: fields for name, fields in MODES.items() if name not in later}, "refused": REFUSED}
    with ThreadPoolExecutor(2) as pool:
        return Runs(zip(cases, pool.map(run, cases, cases.values()), strict=True))


Ended = dict[str, tuple[Started, RunResult]]


@pytest.fixture(scope="module")
def described(framework: str) -> Finished:
    """What `describe` prints, and in the last line of its stderr all that it has imported."""
    code = (
        "import atexit, runpy, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
        f"sys.argv = ['', 'describe']; runpy.run_module('{framework}_impl', run_name='__main__')"
    )
    return processes.python("-c", code).succeeded()


@pytest.fixture(scope="module")
def description(described: Finished) -> dict[str, Any]:
    return described.json


def test_a_twin_imports_no_more_of_its_framework_than_every_run_needs(framework: str, described: Finished) -> None:
    """torchvision and torch's compiler take as long to import as torch itself, in every process of every run."""
    imported = set(described.stderr.splitlines()[-1].split())
    others = {
        "pytorch": {"tensorflow", "torchvision", "torch._dynamo", "sympy", "sklearn", "scipy"},
        "tensorflow": {"torch", "sklearn", "scipy", "pandas"},
    }
    assert framework.replace("py", "") in imported and not imported & others[framework]


def test_describe_prints_versions_devices_modes_and_options_as_json(framework: str, description: dict[str, Any]) -> None:
    assert description.keys() - {"on_cpu"} == {
        "framework", "versions", "devices", "modes", "options", "formats", "inputs", "deterministic",
        "environment", "supported", "libraries",
    }  # fmt: skip
    assert tuple(description["modes"]) == spec.MODES.names()
    assert all(
        "compression" in mode and "per_replica" in mode["batch_norm_statistics"] for mode in description["modes"].values()
    )


def test_a_result_holds_every_switch_as_it_was(ended: Ended, description: dict[str, Any]) -> None:
    for _, result in ended.values():
        if result.status != "ok":
            continue
        assert result.switches == {switch: option["default"] for switch, option in description["options"].items()}
        assert result.conditions == spec.conditions(result.spec, description) | {"allocator": result.machine["allocator"]}
        assert result.conditions.keys() == {"layout", "precision", "graph", "mechanism", "allocator", "deterministic"}
        assert result.reduced == [] and result.machine["allocator"] in ("keeps freed pages", "the system's default")


def test_a_spec_is_held_against_the_description(description: dict[str, Any]) -> None:
    def judge(**fields: Any) -> str | None:
        return spec.check_against(Spec.model_validate(SETTINGS | fields), description)

    assert judge() is None
    for name, option in description["options"].items():
        assert judge(framework_options={name: option["default"]}) is None
        with pytest.raises(SpecError, match=f"{name} has a value"):
            judge(framework_options={name: "nonsense"})
    with pytest.raises(SpecError, match="nonsense is unknown"):
        judge(framework_options={"nonsense": 1})
    for mode, described in description["modes"].items():
        if mode != "serial" and described["max_replicas"] is not None:
            refused = judge(mode=mode, replicas=30, cores=1)
            assert refused is not None
            assert refused.startswith("not available: needs")


@pytest.mark.parametrize("name", NAMES)
def test_a_run_trains_on_the_planned_order_from_the_shared_weights(ended: Ended, name: str) -> None:
    run, result = ended[name]
    dataset = sources.load(run.spec.data, seed=3)  # its own, not that of order and weights
    architecture = architectures.resolve(run.spec.model, len(dataset.class_names), dataset.image_size)
    plan = batches.BatchPlan(run.spec, architecture, len(dataset.train))
    drawn = [plan.draw(epoch) for epoch in range(1, plan.epochs + 1)]
    initial = weights.initial(architecture, run.spec.seed)
    assert result.order_hash == batches.order_digest(np.concatenate([epoch.ids for epoch in drawn]))
    assert result.weights_hash == weights.digest(initial)
    assert result.data_hash == dataset.content_hash
    first, epoch = slice(0, run.spec.global_batch_size), drawn[0]
    images = oracles.augment(dataset.train.images[epoch.ids[first]], epoch.flips[first], epoch.shifts[first])
    forward = oracles.Forward(architecture, initial, images, [mask[first] for mask in oracles.masks(epoch)], training=True)
    loss = oracles.cross_entropy(forward.logits, dataset.train.labels[epoch.ids[first]]).mean()
    assert result.first_step_loss == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("name", NAMES[1:])
def test_every_mode_and_input_is_the_same_training_as_serial(ended: Ended, name: str) -> None:
    (_, serial), (_, other) = ended["serial"], ended[name]
    assert other.predictions_hash == serial.predictions_hash
    assert other.test is not None and other.confusion is not None and other.confusion == serial.confusion
    assert sum(row[label] for label, row in enumerate(other.confusion)) == other.test.num_correct
    assert len(other.epochs) == len(serial.epochs) == SETTINGS["epochs"]
    scores = [[(epoch.train, epoch.validation) for epoch in result.epochs] for result in (serial, other)]
    for ours, theirs in zip(*scores, strict=True):
        for expected, received in zip(ours, theirs, strict=True):
            assert received.loss == pytest.approx(expected.loss, rel=1e-9)
            assert (received.num_correct, received.num_examples) == (expected.num_correct, expected.num_examples)
    assert other.test is not None
    assert serial.test is not None
    assert other.test.loss == pytest.approx(serial.test.loss, rel=1e-9)


@pytest.mark.slow
def test_input_workers_change_no_bit(ended: Ended) -> None:
    (_, inline), (_, workers) = ended["serial"], ended["workers"]
    assert workers.first_step_loss == inline.first_step_loss
    assert [epoch.train for epoch in workers.epochs] == [epoch.train for epoch in inline.epochs]


@pytest.mark.parametrize("name", [name for name in NAMES if name.values[0] in WITH_DASK])
def test_chunks_are_held_once_and_what_was_moved_is_recorded(ended: Ended, name: str) -> None:
    run, result = ended[name]
    assert result.chunks is not None and result.chunks.owners == "processes"
    images = len(sources.load(run.spec.data, seed=3).train)
    image_bytes = 12 * 12 * 3
    owners = len(result.peak_memory_by_process_mib)  # processes of the run: replicas of some modes share one
    num_chunks = -(-images // 20)
    assert result.chunks.owner_of_chunk == [owner for owner in range(owners) for _ in range(*shard(num_chunks, owners, owner))]
    assert sum(result.chunks.held_mib) * 2**20 == pytest.approx(images * image_bytes)
    # Before the first epoch, each process makes one batch more for each worker, to start them. Processes of one copy of the
    # model gather the same batches.
    copies = owners / min(owners, run.spec.data_replicas)
    assert result.chunks.gathered_bytes == copies * (images * SETTINGS["epochs"] + 30 * (run.spec.workers - 1)) * image_bytes
    moved = result.chunks.moved_bytes / result.chunks.gathered_bytes
    assert moved == 0 if owners == 1 else 0.7 < moved / (1 - 1 / owners) < 1.3


@pytest.mark.slow
def test_models_that_are_averaged_get_their_images_from_each_others_chunks(start: Any, tmp_path: Path) -> None:
    fields = {"mode": "model_averaging", "replicas": 2, "batch_norm_statistics": "per_replica", "epochs": 4}
    chunked = start(**fields, **DASK).end()
    inline = start(**fields).end()
    assert chunked.status == inline.status == "ok" and chunked.final_weights_hash == inline.final_weights_hash
    assert chunked.chunks is not None and chunked.chunks.moved_bytes > 0 and inline.chunks is None


SKEWED = {"order": "owned", "owners": 2, "partition": "class_skew", "skew": 1.0, "chunk_images": 20}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["multi_process", "parameter_server"])
def test_replicas_that_own_their_images_train_as_serial_does_in_the_same_order(start: Any, mode: str) -> None:
    fields = {"input": "dask", "workers": 1, "dask": SKEWED, "epochs": 3}
    serial = start(**fields).end()
    parallel = start(**fields, mode=mode, replicas=2).end()
    assert serial.status == parallel.status == "ok", (serial.reason, parallel.reason)
    assert serial.order_hash == parallel.order_hash
    assert parallel.step_losses == pytest.approx(serial.step_losses, rel=1e-9)
    assert parallel.predictions_hash == serial.predictions_hash
    assert parallel.chunks is not None and parallel.chunks.moved_bytes == 0
    assert sorted(set(parallel.chunks.owner_of_chunk)) == [0, 1] and parallel.chunks.held_mib[0] != parallel.chunks.held_mib[1]
    assert len(parallel.images_per_second_by_process) == 2 and min(parallel.images_per_second_by_process) > 0


OWNED = {
    "data": SETTINGS["data"] | {"limit": 99},
    "input": "dask",
    "workers": 1,
    "dask": {"order": "owned", "owners": 3, "partition": "speed", "speeds": [1.0, 2.0, 3.0], "chunk_images": 20},
    "epochs": 2,
    "hang_seconds": 30.0,
}
"""Three parts whose whole batches have one, two and two sizes."""


@pytest.mark.slow
def test_three_replicas_with_parts_of_three_sizes_train_as_serial_does(start: Any) -> None:
    serial = start(**OWNED).end()
    parallel = start(**OWNED, mode="multi_process", replicas=3).end()
    assert serial.status == parallel.status == "ok", (serial.reason, parallel.reason)
    assert parallel.order_hash == serial.order_hash
    assert parallel.step_losses == pytest.approx(serial.step_losses, rel=1e-9)


@pytest.mark.slow
def test_three_replicas_with_parts_of_three_sizes_do_not_wait_for_each_other_forever(start: Any) -> None:
    """A rank that compiled fewer sizes than the others would leave them waiting."""
    run = start(**OWNED, mode="multi_process", replicas=3)
    parallel = run.end()
    assert parallel.status == "ok", parallel.reason
    dataset = sources.load(run.spec.data, seed=3)
    plan = batches.BatchPlan(
        run.spec, architectures.build(run.spec, len(dataset.class_names), dataset.image_size), len(dataset.train)
    )
    assert parallel.order_hash == batches.order_digest(np.concatenate([plan.draw(epoch).ids for epoch in (1, 2)]))
    assert len(parallel.images_per_second_by_process) == 3 and min(parallel.images_per_second_by_process) > 0


@pytest.mark.slow
def test_averaging_after_every_step_weighs_owners_by_their_examples(start: Any) -> None:
    """Without momentum and BatchNorm, an average of one step each is serial's step, however unequal the parts are."""
    owned = {"order": "owned", "owners": 2, "partition": "speed", "speeds": [1.0, 2.0], "chunk_images": 20}
    fields = {
        "model": "simple_cnn", "width": 0.25, "data": {"image_size": 32, "limit": 60, "seed": 3}, "epochs": 2,
        "optimizer": {"learning_rate": 0.02, "momentum": 0.0}, "batch_norm_statistics": "per_replica",
        "input": "dask", "workers": 1, "dask": owned,
    }  # fmt: skip
    serial = start(**fields).end()
    averaged = start(**fields, mode="model_averaging", replicas=2, averaging={"every_steps": 1}).end()
    assert serial.status == averaged.status == "ok", (serial.reason, averaged.reason)
    assert len(set(serial.step_losses)) == 4 and averaged.step_losses == pytest.approx(serial.step_losses, rel=1e-9)
    assert averaged.chunks is not None and averaged.chunks.moved_bytes == 0
    assert averaged.chunks.held_mib[1] == pytest.approx(2 * averaged.chunks.held_mib[0])


@pytest.mark.parametrize("name", NAMES)
def test_phases_add_up_to_the_time_that_the_command_took(ended: Ended, name: str) -> None:
    run, result = ended[name]
    phases = result.phases
    assert phases is not None
    parts = [
        phases.import_seconds, phases.build_seconds, phases.first_step_seconds, phases.compile_seconds,
        phases.training_seconds, phases.evaluation_seconds, phases.other_seconds,
    ]  # fmt: skip
    assert sum(parts) == pytest.approx(phases.wall_seconds, rel=0.02)
    if not run.spec.profile_steps:  # the wall time of a run that is profiled ends before that
        sealed = (run.folder / results.RESULT_FILE).stat().st_mtime
        assert sum(parts) == pytest.approx(sealed - run.started, rel=0.02, abs=0.05)
    assert all(seconds >= 0 for seconds in parts)
    # The kernel's record of a process's start is good to a hundredth of a second.
    assert phases.wall_seconds < run.seconds + 0.05
    assert sum(epoch.timed_seconds for epoch in result.epochs) == pytest.approx(phases.training_seconds, rel=0.02)
    assert sum(epoch.input_wait_seconds for epoch in result.epochs) == pytest.approx(phases.input_wait_seconds)
    assert phases.input_wait_seconds <= phases.training_seconds


@pytest.mark.parametrize("name", NAMES)
def test_a_run_keeps_to_its_cores(ended: Ended, name: str) -> None:
    run, result = ended[name]
    assert result.phases is not None
    if result.phases.training_seconds < LEAST_TIMED_SECONDS:
        assert result.cores_used is None
        return
    assert result.cores_used is not None
    assert 0 < result.cores_used <= run.spec.cores + 0.15  # CPU time is counted in hundredths of a second


@pytest.mark.parametrize("name", NAMES)
def test_a_run_records_what_else_the_machine_did(ended: Ended, name: str) -> None:
    _, result = ended[name]
    noise = result.noise
    assert noise is not None
    assert noise.load_start is not None and noise.load_end is not None
    assert (noise.cores_stolen is None) == (result.cores_of_others is None) == (result.cores_used is None)
    if noise.cores_stolen is not None and result.cores_of_others is not None:
        assert 0.0 <= noise.cores_stolen <= result.cores_of_others + 0.05


@pytest.mark.parametrize("name", NAMES)
def test_events_tell_the_run_as_it_happened(ended: Ended, name: str) -> None:
    run, result = ended[name]
    events = event_log.read_events(run.folder)
    epochs = ["epoch"] * SETTINGS["epochs"]
    assert [event["event"] for event in events] == ["start", "first_step", *epochs, "end"]
    assert events[1]["loss"] == result.first_step_loss
    assert events[-1]["status"] == "ok"
    assert event_log.read_epochs(run.folder) == result.epochs


@pytest.mark.parametrize("name", ["serial", pytest.param("data_parallel", marks=pytest.mark.slow), "multi_process"])
def test_a_profiled_run_says_where_a_steps_time_goes_and_what_it_sends(ended: Ended, name: str) -> None:
    run, result = ended[name]
    parts = result.step_parts
    assert parts is not None and parts.steps == run.spec.profile_steps
    if name == "serial":
        assert parts.compute_seconds == parts.step_seconds and parts.communication_exposed_seconds == 0.0
    else:  # what BatchNorm exchanges lies within what is computed
        assert parts.compute_seconds is None and "BatchNorm" in (parts.not_separable or "")
    assert (result.bytes_per_step is None) == (name == "serial")


@pytest.mark.parametrize("name", [name for name in NAMES if MODES[str(name.values[0])].get("profile_steps")])
def test_a_profiled_run_reports_its_breakdown_and_its_operations_and_leaves_a_trace(ended: Ended, name: str) -> None:
    run, result = ended[name]
    parts = result.step_parts
    assert parts is not None and parts.forward_seconds is not None and parts.backward_seconds is not None
    assert (parts.optimizer_seconds is None) == (name == "parameter_server")  # the server has it
    assert parts.pieces is not None and ("BatchNorm" in parts.pieces) == (name != "serial")
    assert result.top_operations is not None and result.top_operations.trace == results.TRACE_FILE
    assert all(operation.calls > 0 and operation.name for operation in result.top_operations.operations)
    # Which ten are the longest is a matter of the machine's load; that convolutions were seen is not.
    assert b"conv" in gzip.decompress((run.folder / results.TRACE_FILE).read_bytes()).lower()


@pytest.mark.parametrize("part", [pytest.param("input", marks=pytest.mark.slow), "compute"])
@pytest.mark.shared
def test_a_part_alone_is_timed_and_scores_nothing(start: Any, part: str) -> None:
    # Waiting is half of the time or more: so many epochs that a moment without the core does not make it less.
    epochs = {"input": 30, "compute": 3}[part]
    run = start(part=part, cores=1, epochs=epochs)
    result = run.end()
    assert (run.process.returncode, result.status, result.test, result.predictions_hash) == (0, "ok", None, None)
    assert [(epoch.train, epoch.validation, epoch.steps) for epoch in result.epochs] == [(None, None, 3)] * epochs
    # The input gives every image once an epoch; the model gets its first batch, a whole one, at each step.
    assert [epoch.images for epoch in result.epochs] == [{"input": 64, "compute": 90}[part]] * epochs
    assert result.phases is not None
    waited = result.phases.input_wait_seconds / result.phases.training_seconds
    assert waited == 0.0 if part == "compute" else waited > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serial", "multi_process"])
def test_too_large_a_learning_rate_ends_as_diverged_with_the_epochs_so_far(start: Any, mode: str) -> None:
    fields = {"model": "simple_cnn", "data": {"limit": 64}, "global_batch_size": 64, "precision": "float32"}
    run = start(**fields, **MODES[mode], optimizer={"learning_rate": 1e2})
    result = run.end()
    assert (run.process.returncode, result.status) == (1, "diverged")
    said = re.fullmatch(r"(?:validation )?loss is (?:nan|inf) .*epoch (\d+).*; try a smaller .*learning_rate", result.reason)
    assert said is not None, result.reason
    assert [epoch.epoch for epoch in result.epochs] == list(range(1, int(said[1])))
    assert result.epochs
    assert result.phases is not None


def test_a_run_on_one_machine_listens_on_the_loopback_interface_alone(ended: Ended) -> None:
    """TensorFlow's sockets are bound to the interface, and not to an address, a moment after they begin to listen."""
    (run, _) = ended["multi_process"]
    assert run.listening, "the ranks are connected"
    assert all(place in LOCAL or f"%lo:{port} " in place for (_, port), place in run.listening.items()), run.listening


def test_refused_data_ends_with_exit_code_4_and_its_reason(ended: Ended) -> None:
    assert_refused(ended["refused"][1])


@pytest.mark.slow
def test_data_that_all_ranks_refuse_ends_with_exit_code_4_and_its_reason(start: Any) -> None:
    run = start(**REFUSED | MODES["multi_process"])
    result = run.end()
    assert run.process.returncode == 4
    assert_refused(result)


@pytest.mark.shared
def test_a_killed_rank_ends_the_run_as_killed_and_is_named(start: Any, tmp_path: Path) -> None:
    run = start(**ENDLESS)
    ranks = run.ranks()
    ranks[1].kill()
    result = run.end()
    assert (run.process.returncode, result.status) == (1, "killed")
    assert result.reason.startswith("rank 1 of 2 was ended by SIGKILL; see stacks-rank0.txt, stacks-rank1.txt")
    # Rank 0 notices too that its partner is gone. It may have ended on its own before it is asked.
    assert re.search("most recent call first|^It has ended", (tmp_path / "stacks-rank0.txt").read_text())
    assert (tmp_path / "stacks-rank1.txt").read_text() == "It has ended.\n"
    assert [epoch.epoch for epoch in result.epochs] == list(range(1, len(result.epochs) + 1))
    assert result.epochs
    wait_until_gone(ranks)


@pytest.mark.slow
def test_a_killed_rank_that_others_ask_for_images_is_named(start: Any) -> None:
    run = start(**ENDLESS | DASK)
    ranks = run.ranks()
    ranks[1].kill()
    result = run.end()
    assert (run.process.returncode, result.status) == (1, "killed")
    assert result.reason.startswith("rank 1 of 2 was ended by SIGKILL")
    wait_until_gone(ranks)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["SIGTERM", "SIGKILL"])
def test_a_run_of_several_processes_that_is_ended_leaves_no_orphan_and_no_result(
    start: Any, tmp_path: Path, number: str
) -> None:
    (tmp_path / results.RESULT_FILE).write_text("of an earlier run")
    run = start(**ENDLESS)
    ranks = run.ranks()
    assert len(ranks) == 2
    run.process.send_signal({"SIGTERM": 15, "SIGKILL": 9}[number])
    assert run.process.wait(SECONDS) == {"SIGTERM": 143, "SIGKILL": -9}[number]
    wait_until_gone(ranks)
    assert not (tmp_path / results.RESULT_FILE).exists()


def test_a_spec_on_standard_input_is_refused_as_one_in_a_file_is(framework: str, tmp_path: Path) -> None:
    ended = processes.twin(framework, "run", "/dev/stdin", "--out", tmp_path / "out", stdin='{"modle": 1}')
    assert ended.exit_code == 2 and "modle is not a field" in ended.stderr, ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_models_writes_the_summary_of_a_users_model(framework: str, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(spec.build(SETTINGS).to_json())
    processes.twin(framework, "models", tmp_path / "spec.json", "--out", tmp_path / "summary").succeeded()
    summary = json.loads((tmp_path / "summary").read_text())
    assert (summary["framework"], summary["model"]) == (framework, SETTINGS["model"])


def _traced(framework: str, folder: Path, name: str, *words: str | Path) -> Finished:
    """The command that records, of a spec in the folder."""
    return processes.twin(framework, "trace", folder / f"{name}.json", *words)


def _write_specs(folder: Path, **fields: dict[str, Any]) -> None:
    for name, own in fields.items():
        values = SETTINGS | {"cores": 1, "epochs": None} | own
        (folder / f"{name}.json").write_text(spec.build(values).to_json(), "utf-8")


def test_specs_that_one_process_cannot_record_are_refused(framework: str, tmp_path: Path) -> None:
    _write_specs(tmp_path, first={"steps": 4}, divided={"steps": 3, "replicas": 2, "mode": "data_parallel"})
    then = ("--then", tmp_path / "divided.json", "--out", tmp_path / "divided")
    refused = _traced(framework, tmp_path, "first", "--out", tmp_path / "first", *then)
    assert refused.exit_code == 2 and "divided.json has another mode, replicas" in refused.stderr, refused.stderr
    assert not (tmp_path / "first").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serial", "data_parallel", "multi_process", "hybrid_tensor"])
def test_several_specs_recorded_by_one_process_are_what_each_is_alone(framework: str, mode: str, tmp_path: Path) -> None:
    own = {} if mode == "serial" else MODES[mode]
    second = {"steps": 3, "seed": 5, "precision": "float32"} | ({"accumulation": 2} if mode == "serial" else {})
    _write_specs(tmp_path, first={"steps": 4, **own}, second={**second, **own})
    then = ("--then", tmp_path / "second.json", "--out", tmp_path / "second", "--reverse-batches")
    together = _traced(framework, tmp_path, "first", "--out", tmp_path / "first", *then)
    together.succeeded()
    alone = _traced(framework, tmp_path, "second", "--out", tmp_path / "alone", "--reverse-batches")
    alone.succeeded()
    first, ours, theirs = (safetensors.numpy.load_file(tmp_path / name) for name in ("first", "second", "alone"))
    assert (len(first["loss"]), len(ours["loss"])) == (4, 3)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        if mode == "serial":
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)
        else:  # replicas add in the order in which they end
            np.testing.assert_allclose(array, theirs[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serial", "data_parallel", "multi_process", "sharded_data_parallel", "tensor_parallel"])
def test_a_recording_that_goes_on_with_a_trainer_is_what_a_new_one_makes(framework: str, mode: str, tmp_path: Path) -> None:
    """Bit for bit, after steps on other data. The second recording goes on with the first one's trainer."""
    own = {"model": "tests.parity.probe", "data": {"limit": 45}, "optimizer": {"name": "adam"}, **MODES[mode]}
    _write_specs(
        tmp_path, teacher={**own, **MODES["serial"], "steps": 4}, first={**own, "steps": 3}, second={**own, "steps": 4}
    )
    drawn = ["--drawn", "0,1,2,3"]
    words: dict[str, list[Any]] = {"single steps": [*drawn, "--teacher", tmp_path / "states"]}
    if mode == "serial":
        _write_specs(tmp_path, first={**own, "data": {"limit": 64}, "steps": 3})
        words |= {"free steps": ["--reverse-batches"], "a teacher's": drawn}
    assert _traced(framework, tmp_path, "teacher", "--out", tmp_path / "states", *drawn).returncode == 0
    for name, options in words.items():
        then = ("--then", tmp_path / "second.json", "--out", tmp_path / name, *options)
        for done in (
            _traced(framework, tmp_path, "first", "--out", tmp_path / "first", *then),
            _traced(framework, tmp_path, "second", "--out", tmp_path / "alone", *options),
        ):
            done.succeeded()
        ours, theirs = (safetensors.numpy.load_file(path) for path in (tmp_path / name, tmp_path / "alone"))
        assert ours.keys() == theirs.keys()
        assert [each for each in ours if not np.array_equal(ours[each], theirs[each])] == [], name


def test_the_clock_starts_with_the_process() -> None:
    before = machine.clock()
    code = "from common.training import timing; print(timing.process_started())"
    started = float(processes.python("-c", code).succeeded().stdout)
    # The kernel counts in hundredths of a second; how long it takes to start a process depends on who else does.
    assert before - 0.02 < started < before + 10.0


@pytest.mark.parametrize("fields", [{"cores": 1}, pytest.param(MODES["multi_process"], marks=pytest.mark.slow)])
@pytest.mark.shared
def test_a_users_model_that_ends_the_process_fails_the_run(start: Any, fields: dict[str, Any]) -> None:
    run = start(**{"model": "tests.twins.ending_model", **fields})
    result = run.end()
    assert (run.process.returncode, result.status, result.epochs) == (1, "failed", [])
    assert result.reason is not None and "model tests.twins.ending_model ends the process: SystemExit: 0" in result.reason


def assert_refused(result: RunResult) -> None:
    assert (result.status, result.epochs) == ("failed", [])
    assert result.reason is not None
    assert result.reason.startswith("DataRefused: ")

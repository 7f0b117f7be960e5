"""A twin that trains nothing: it writes what a real one writes, and dies in the ways that a real one dies.

FAKE_TWIN_BEHAVIOUR holds JSON: {"<framework>-<mode>-<cores>": "<behaviour>"}; what is not in it goes well. Several, as in
`kill, ok`, are those of the attempts of a run.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import spec
from common.artifacts import event_log, results
from common.artifacts.schema import EpochRecord, Metrics, Noise, Phases, RunResult

EPOCHS = 3
SIGNALS = {"kill": signal.SIGKILL, "abort": signal.SIGABRT, "terminate": signal.SIGTERM}


def main(framework: str) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["describe", "run"])
    parser.add_argument("spec", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--resume", type=Path)
    arguments = parser.parse_args()
    behaviours = json.loads(os.environ.get("FAKE_TWIN_BEHAVIOUR", "{}"))
    if arguments.command == "describe":
        print(json.dumps(describe(framework, behaviours)))
        return 0
    run = spec.from_json(arguments.spec.read_text())
    behaviour = behaviours.get(f"{framework}-{run.mode}-{run.cores}", "ok")
    return train(framework, run, arguments.out, arguments.repeat, behaviour)


SECOND_LOSSES = {"followed": 2.0, "turned": 2.0002}
"""What two runs have at step 2, if rounding has turned a ReLU in one."""


def describe(framework: str, behaviours: dict[str, str]) -> dict[str, object]:
    def mode(name: str) -> dict[str, object]:
        lacking = behaviours.get(f"{framework}-{name}") == "unavailable"
        return {
            "available": not lacking,
            "reason": "needs 2 CUDA devices, found 0" if lacking else None,
            "max_replicas": None,
            "resource": "cores",
            "implementation": "nothing",
            "batch_norm_statistics": ["per_replica", "synchronised"],
        }

    return {
        "framework": framework,
        "versions": {framework: "1.0"},
        "devices": [{"name": "cpu", "kind": "cpu"}],
        "modes": {name: mode(name) for name in spec.MODES},
        "options": {f"{framework}_switch": {"values": ["plain", "quick"], "default": "plain", "help": ""}},
    }


def train(framework: str, run: spec.Spec, out: Path, repeat: int, behaviour: str) -> int:
    first = framework in ("left", "pytorch")
    seconds = (1.0 if first else 2.0) / (1 + 0.5 * (run.replicas - 1) + 0.2 * (run.cores - 1))
    facts = {
        "framework": framework,
        "spec": run,
        "repeat": repeat,
        "implementation": "nothing",
        "device": "cpu",
        "versions": {framework: "1.0"},
        "order_hash": f"a{run.seed:063d}",
        "weights_hash": f"b{run.seed:063d}",
        "data_hash": f"c{run.split_seed:063d}",
        "first_step_loss": (2.3 if first else 2.3000002) + 0.1 * run.seed,
    }
    if behaviour == f"disturbed in {repeat}":
        facts["noise"] = Noise(cores_taken=0.4)
    if behaviour in SECOND_LOSSES:
        facts["step_losses"] = [facts["first_step_loss"], SECOND_LOSSES[behaviour]]
    event_log.append_event(out, "start", total_epochs=EPOCHS, total_steps=EPOCHS * 20, steps_per_epoch=20)
    event_log.append_event(out, "first_step", seconds=0.1, loss=facts["first_step_loss"])
    epochs = []
    for index in range(1, EPOCHS + 1):
        record = epoch(index, seconds)
        epochs.append(record)
        event_log.append_event(out, "epoch", **record.model_dump())
        attempts = behaviour.split(", ")
        if len(attempts) > 1:
            behaviour = dict(enumerate(attempts)).get(len(list(out.parent.glob(f"{out.name}.attempt*"))), "ok")
        misbehave(behaviour, framework, out)
        if behaviour == "diverge":
            results.save(RunResult(status="diverged", reason="loss is nan at epoch 2, step 1", epochs=epochs, **facts), out)
            return 1
    if behaviour == "silent":
        return 0
    if behaviour == "torn":
        (out / results.RESULT_FILE).write_text('{"schema_version": 1, "frame')
        return 0
    phases = Phases(
        import_seconds=1, build_seconds=1, first_step_seconds=0.1, training_seconds=3 * seconds, input_wait_seconds=0,
        evaluation_seconds=0.3, other_seconds=0, wall_seconds=2.4 + 3 * seconds,
    )  # fmt: skip
    test = Metrics(loss=0.5, accuracy=0.9 - 0.01 * run.seed, num_correct=90 - run.seed, num_examples=100)
    results.save(
        RunResult(
            status="ok", epochs=epochs, test=test, phases=phases, cores_used=run.cores * 0.9, peak_memory_mib=100, **facts
        ),
        out,
    )
    return 0


def misbehave(behaviour: str, framework: str, out: Path) -> None:
    if behaviour == "crash":
        print("a warning before", file=sys.stderr)
        raise RuntimeError("no more = memory\x1b[31m")
    if behaviour == "fill":
        # Without a name: the room comes back when the process ends, as that of a framework's own temporary files does.
        with tempfile.TemporaryFile(dir=out) as ballast:
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(2**16))
                    ballast.flush()
            (out / "more").write_bytes(bytes(2**16))
    if behaviour == "keep full":
        with contextlib.suppress(OSError), (out / "ballast").open("wb") as ballast:
            while True:
                ballast.write(bytes(2**12))
                ballast.flush()
        (out / "more").write_bytes(bytes(2**16))
    if behaviour in SIGNALS:
        os.kill(os.getpid(), SIGNALS[behaviour])
    if behaviour == "interrupt":
        sys.exit(128 + signal.SIGINT)  # as a launcher of ranks
    if behaviour in ("hang", "deaf"):
        if behaviour == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # A child in a session of its own, as a launcher of ranks may start one.
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        (out / "pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)


def epoch(index: int, seconds: float) -> EpochRecord:
    accuracy = 1 - 0.5**index
    score = Metrics(loss=1.0 / index, accuracy=accuracy, num_correct=round(1258 * accuracy), num_examples=1258)
    return EpochRecord(
        epoch=index, steps=20, images=1258, epoch_images=1258, learning_rate=0.05,
        train=score, validation=score, timed_seconds=seconds,
        timed_steps=20, timed_images=1258, input_wait_seconds=0.0, evaluation_seconds=0.1,
        first_step_seconds=0.1 if index == 1 else None,
    )  # fmt: skip

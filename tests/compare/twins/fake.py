"""A twin that trains nothing: it writes what a real one writes, and dies in the ways that a real one dies.

FAKE_TWIN_BEHAVIOUR holds JSON: {"<framework>-<mode>-<cores>": "<behaviour>"}; what is not in it goes well. Several, as in
`kill, ok`, are those of the attempts of a run.
"""

import argparse
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import spec
from common.artifacts import event_log, results
from common.artifacts.schema import EpochRecord, Metrics, Noise, Phases, RunResult
from common.machine import heartbeat

IMAGES = 1258
"""Of its data, in the training split."""
SIGNALS = {"kill": signal.SIGKILL, "abort": signal.SIGABRT, "terminate": signal.SIGTERM}
SIGNALS_TO_COMMAND = {"stop": signal.SIGTERM, "ctrl-c": signal.SIGINT}


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
        "modes": {name: mode(name) for name in spec.MODES.names()},
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
    if behaviour.startswith("noisy"):  # a percent of standard deviation
        seconds *= math.exp(random.Random(out.name).gauss(0.0, 0.01))
        behaviour = "ctrl-c" if behaviour == f"noisy until {repeat}" else "ok"
    if behaviour.startswith("record "):
        with (out / "spot_check_2_before.safetensors").open("wb") as steps:
            steps.truncate(int(behaviour.split()[1]))  # a hole takes no room
    per_epoch, total = planned(run)
    event_log.append_event(out, "start", total_epochs=-(-total // per_epoch), total_steps=total, steps_per_epoch=per_epoch)
    event_log.append_event(out, "first_step", seconds=0.1, loss=facts["first_step_loss"])
    epochs = []
    for record in epochs_of(run, seconds):
        if behaviour == f"unrecorded in {repeat}":  # it claims its examples, and lacks the steps that its nonce draws
            record = record.model_copy(update={"fingerprint": "0" * 64})
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
    phases = phases_of(epochs)
    test = Metrics(loss=0.5, accuracy=(90 - run.seed) / 100, num_correct=90 - run.seed, num_examples=100)
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
    if behaviour.startswith("remove "):
        Path(behaviour.removeprefix("remove ")).unlink(missing_ok=True)
    if behaviour.startswith("rest "):
        time.sleep(float(behaviour.split()[1]))
    if behaviour == "stall":  # it has begun to train
        heartbeat.attach()
        heartbeat.count_sync_point()
        time.sleep(600)
    if behaviour in SIGNALS_TO_COMMAND:  # somebody ends the command meanwhile
        os.kill(os.getppid(), SIGNALS_TO_COMMAND[behaviour])
        time.sleep(600)
    if behaviour == "interrupt":
        sys.exit(128 + signal.SIGINT)  # as a launcher of ranks
    if behaviour in ("hang", "deaf"):
        if behaviour == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # A child in a session of its own, as a launcher of ranks may start one.
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        (out / "pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)


def planned(run: spec.Spec) -> tuple[int, int]:
    """(steps of a whole epoch, of the run)."""
    per_epoch = -(-images_of(run) // run.global_batch_size)
    return per_epoch, run.steps or per_epoch * (run.epochs or 0)


def images_of(run: spec.Spec) -> int:
    return min(IMAGES, run.data.limit or IMAGES)


def epoch(index: int, seconds: float, run: spec.Spec | None = None) -> EpochRecord:
    """An epoch as the loop records it.

    Args:
        seconds: of a whole epoch at its pace.
        run: None: the default.
    """
    run = run or spec.build({})
    per_epoch, total = planned(run)
    steps, untimed = min(per_epoch, total - (index - 1) * per_epoch), index == 1
    batch = min(run.global_batch_size, images_of(run))
    images = steps * batch if run.part == "compute" else min(steps * batch, images_of(run))
    timed_images = images - untimed * batch
    return EpochRecord(
        epoch=index, steps=steps, images=images, epoch_images=images_of(run),
        learning_rate=run.learning_rate((index - 1) * per_epoch + steps - 1, per_epoch, total),
        train=score(index, images) if run.part == "training" else None,
        validation=score(index, 1280) if run.part == "training" else None,
        timed_seconds=seconds * timed_images / images_of(run), timed_steps=steps - untimed, timed_images=timed_images,
        input_wait_seconds=0.0, evaluation_seconds=0.1, first_step_seconds=0.1 if untimed else None,
    )  # fmt: skip


def epochs_of(run: spec.Spec, seconds: float) -> list[EpochRecord]:
    """All epochs of a run."""
    per_epoch, total = planned(run)
    return [epoch(index, seconds, run) for index in range(1, -(-total // per_epoch) + 1)]


def score(index: int, images: int) -> Metrics:
    num_correct = round(images * (1 - 0.5**index))
    return Metrics(loss=1.0 / index, accuracy=num_correct / images, num_correct=num_correct, num_examples=images)


def phases_of(epochs: list[EpochRecord], first_step_seconds: float = 0.1) -> Phases:
    """Of a run with these epochs."""
    training = sum(each.timed_seconds for each in epochs)
    evaluation = sum(each.evaluation_seconds for each in epochs)
    return Phases(
        import_seconds=1, build_seconds=1, first_step_seconds=first_step_seconds, training_seconds=training,
        input_wait_seconds=0, evaluation_seconds=evaluation, other_seconds=0,
        wall_seconds=2 + first_step_seconds + training + evaluation,
    )  # fmt: skip

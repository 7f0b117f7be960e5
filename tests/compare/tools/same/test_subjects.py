"""A side as the user gives it: data or a command, how many processes it starts, and how much it may print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from compare.cli.errors import UnfitError
from compare.running.launch import run_into_files
from compare.tools.same import curves, subjects
from compare.tools.same.curves import LossesError
from tests.compare.tools.same import events

LINE = '{"step": 1, "loss": 0.5}\n'


@pytest.mark.parametrize("name", ["their.jsonl", "their.csv", "events.out.tfevents.1.host", "their.log"])
@pytest.mark.parametrize("folder", ["", "./"])
def test_losses_with_an_x_bit_are_data(here: Path, name: str, folder: str) -> None:
    file = here / name
    file.write_text(LINE)
    file.chmod(0o755)
    assert subjects.subject("A", folder + name).words == ()


def test_a_program_that_is_named_alone_is_a_command(here: Path) -> None:
    program = here / "train.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert subjects.subject("A", "./train.sh").words == ("./train.sh",)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("mpirun -n 2 python train.py", 2),
        ("mpiexec --bind-to none -np 4 python train.py -n 7", 4),
        ("nice -n 15 mpirun -n 2 python train.py", 2),
        ("nice -n 15 python train.py", None),
        ("python train.py -n 100", None),
        ("torchrun --nproc_per_node=2 train.py", 2),
        ("accelerate launch --num_processes 2 train.py", 2),
        ("python train.py --devices 2", 2),
        ("python train.py --devices 2,3", 2),
        ("python train.py --gpus 0,1,2", 3),
        ("python train.py", None),
    ],
)
def test_processes_are_those_of_a_launcher(text: str, number: int | None) -> None:
    assert subjects.Subject("B", text, tuple(text.split())).processes == number


def test_a_command_that_prints_without_end_is_ended(here: Path) -> None:
    program = "import sys\nwhile True: print('x' * 1000, file=sys.{})"
    files = here / "output.txt", here / "errors.txt"
    for stream in ("stdout", "stderr"):
        with pytest.raises(UnfitError, match="more than 100,000 bytes"):
            run_into_files([sys.executable, "-c", program.format(stream)], {}, *files, 100_000)
    assert run_into_files([sys.executable, "-c", "import sys; print(1); sys.exit(3)"], {}, *files, 100) == 3
    assert [file.read_text() for file in files] == ["1\n", ""]


def test_a_folder_of_too_many_events_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = events.event_file([(1, 0.5)])
    for number in range(3):
        (here / f"events.out.tfevents.{number}.host").write_bytes(content)
    monkeypatch.setattr(curves, "MOST_BYTES", 2 * len(content))
    with pytest.raises(LossesError, match="event files of"):
        curves.read(here)

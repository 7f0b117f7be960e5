"""Signals that come between the start of a process and the note of it."""

import os
import signal
import sys
import threading
from typing import Any

import psutil
import pytest

from common.processes import signals, supervisor
from common.processes.process_spec import ProcessSpec
from tests.signalled import signalled_at_start


@pytest.mark.parametrize(("code", "number"), [(0, 0), (1, 1), (137, 137), (-9, -9), (143, -15), (130, -2)])
def test_a_process_that_took_a_signal_and_ended_counts_as_ended_by_it(code: int, number: int) -> None:
    assert signals.exit_code(code) == number


class ArrivedError(Exception):
    pass


@pytest.fixture
def handled() -> Any:
    def handler(number: int, frame: object) -> None:
        raise ArrivedError(number)

    before = {number: signal.signal(number, handler) for number in signals.TERMINATION_SIGNALS}
    yield
    for number, earlier in before.items():
        signal.signal(number, earlier)


@pytest.mark.parametrize("number", signals.TERMINATION_SIGNALS)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_signal_waits_for_the_end_of_the_block(handled: None, number: signal.Signals, depth: int) -> None:
    reached = list[int]()

    def block(left: int) -> None:
        with signals.defer_signals():
            if left > 1:
                block(left - 1)
            else:
                os.kill(os.getpid(), number)
            reached.append(left)

    with pytest.raises(ArrivedError) as arrived:
        block(depth)
    assert arrived.value.args == (number,)
    assert reached == list(range(1, depth + 1))


def test_work_that_was_begun_is_finished_and_knows_of_the_signals(handled: None) -> None:
    handlers = [signal.getsignal(number) for number in signals.TERMINATION_SIGNALS]
    with signals.record_signals() as arrived:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert arrived == [signal.SIGTERM, signal.SIGINT]
    assert [signal.getsignal(number) for number in signals.TERMINATION_SIGNALS] == handlers


def test_a_signal_that_is_ignored_stays_ignored(handled: None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with signals.defer_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_thread_may_start_processes_too() -> None:
    done = list[bool]()

    def work() -> None:
        with signals.defer_signals():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize("number", signals.TERMINATION_SIGNALS)
def test_no_rank_is_left_by_a_signal_that_comes_while_it_is_started(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = signalled_at_start(monkeypatch, number)
    member = ProcessSpec("rank 0", [sys.executable, "-c", "import time; time.sleep(600)"], {})
    with pytest.raises(SystemExit) as ended:
        supervisor.run_members([member, member], supervisor.Watch())
    assert ended.value.code == 128 + number
    assert len(started) == 1 and not psutil.pid_exists(started[0])

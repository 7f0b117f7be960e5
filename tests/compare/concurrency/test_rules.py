"""Each rule on small programs: what it finds stands beside what it lets through."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from compare.concurrency import sources
from compare.concurrency.meanings import Meanings, configured
from compare.concurrency.program import Program
from compare.concurrency.search import UNUSUAL, Searched, search

Check = Callable[..., Searched]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def checked(text: str, meanings: Meanings | None = None, **others: str) -> Searched:
        for name, source in {"program": text, **others}.items():
            (tmp_path / f"{name}.py").write_text(source)
        return search(Program(sources.read(str(tmp_path)), meanings or Meanings()), nodes=20_000, seconds=20)

    return checked


RANKS = """
import os, time, sys
import torch
import torch.distributed as dist

def main(loader, config):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
{body}

if __name__ == "__main__":
    main(None, None)
"""


def ranks(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    return RANKS.format(body=lines)


@pytest.mark.parametrize(
    ("body", "rules"),
    [
        ("if rank == 0:\n    dist.barrier()", {"collective-missing"}),
        ("if rank == 0:\n    print('hello')\ndist.barrier()", set()),
        ("if rank == 0:\n    dist.barrier()\nelse:\n    dist.barrier()", set()),
        ("first = rank == 0\nif first:\n    dist.barrier()", {"collective-missing"}),
        ("if config.sync:\n    dist.barrier()", set()),
        ("if config.sync and rank == 0:\n    dist.barrier()", {"collective-missing"}),
        ("if int(os.environ['LOCAL_RANK']) % 2:\n    dist.barrier()", {"collective-missing"}),
        ("if dist.get_world_size() == 1:\n    return\ndist.barrier()", set()),
        ("if rank > 0:\n    raise RuntimeError('no')\ndist.barrier()", set()),
        ("if rank > 0:\n    sys.exit(0)\ndist.barrier()", set()),
        ("for _ in range(rank + 1):\n    dist.barrier()", {"collective-missing"}),
        ("for _ in range(len(config.files)):\n    dist.barrier()", set()),
        ("for name in config.files[rank::2]:\n    dist.barrier()", {"collective-missing"}),
        ("for name in config.files[rank::2][: config.n // 2]:\n    dist.barrier()", set()),
        ("files = config.files[rank::2]\nfiles = files[:9]\nfor name in files:\n    dist.barrier()", set()),
        ("for name in config.files[rank::2][:-1]:\n    dist.barrier()", {"collective-missing"}),
        ("for name in config.files[rank::2][: config.n - rank]:\n    dist.barrier()", {"collective-missing"}),
        ("for name in config.files[rank::2][1:]:\n    dist.barrier()", {"collective-missing"}),
        ("size = 4\nfor name in config.files[rank * size : (rank + 1) * size]:\n    dist.barrier()", set()),
        ("start = time.time()\nwhile time.time() - start < 60:\n    dist.barrier()", {"collective-missing"}),
        ("flag = torch.tensor([time.time()])\ndist.broadcast(flag, src=0)\nif flag.item() > 60:\n    dist.barrier()", set()),
        ("flag = torch.tensor([time.time()])\nif flag.item() > 60:\n    dist.barrier()", {"collective-missing"}),
        ("try:\n    config.load()\nexcept Exception:\n    return\ndist.barrier()", {"collective-missing"}),
        ("try:\n    config.load()\nexcept Exception:\n    raise\ndist.barrier()", set()),
        ("try:\n    config.load()\nexcept ImportError:\n    return\ndist.barrier()", set()),
        ("try:\n    config.load()\nfinally:\n    dist.barrier()", set()),
        ("dist.all_reduce(torch.zeros(2 + rank))", {"collective-shape"}),
        ("dist.all_reduce(torch.zeros(config.width))", set()),
        ("dist.broadcast(torch.zeros(2), src=rank)", {"collective-root"}),
        ("work = dist.all_reduce(torch.zeros(2), async_op=True)\nprint(rank)\nwork.wait()", set()),
        ("if rank == 0:\n    work = dist.all_reduce(torch.zeros(2), async_op=True)\n    work.wait()", {"collective-missing"}),
        ("dist.send(torch.zeros(2), 1 - rank)\ndist.recv(torch.zeros(2), 1 - rank)", {"point-to-point"}),
        ("work = dist.isend(torch.zeros(2), 1 - rank)\ndist.recv(torch.zeros(2), 1 - rank)\nwork.wait()", set()),
        ("if rank == 0:\n    dist.send(torch.zeros(2), 1)\nelse:\n    dist.recv(torch.zeros(2), 0)", set()),
        ("if rank == 2:\n    dist.barrier()", {"collective-missing"}),
        ("state = torch.load('x', map_location=f'cuda:{rank}')\nfor _ in range(state['epoch']):\n    dist.barrier()", set()),
    ],
)  # fmt: skip
def test_ranks_that_part_are_found_and_others_are_not(check: Check, body: str, rules: set[str]) -> None:
    assert {each.rule for each in check(ranks(body)).findings} == rules


STOPS = """
for epoch in range(9):
    dist.barrier()
    stop = {stop} if rank == 0 else False
    box = [stop if rank == 0 else None]
    {exchange}
    if rank != 0:
        stop = box[0]
    if stop:
        break
"""


@pytest.mark.parametrize("stop", ["epoch == 0", "config.worse()", "time.time() > 9"])
@pytest.mark.parametrize(
    ("exchange", "rules"),
    [
        ("dist.broadcast_object_list(box, 0)", set()),
        ("dist.broadcast_object_list(box, src=0)", set()),
        ("dist.broadcast_object_list(object_list=box)", set()),
        ("dist.broadcast_object_list(box, 1)", {"collective-missing"}),
        ("pass", {"collective-missing"}),
    ],
)
def test_after_a_broadcast_all_ranks_have_the_roots_objects(check: Check, stop: str, exchange: str, rules: set[str]) -> None:
    found = {each.rule for each in check(ranks(STOPS.format(stop=stop, exchange=exchange))).findings}
    assert found == rules


@pytest.mark.parametrize(
    ("body", "rules"),
    [
        ("with model.no_sync():\n    if rank == 0:\n        model(x).sum().backward()", set()),
        ("if rank == 0:\n    model(x).sum().backward()", {"collective-missing"}),
        ("if rank == 0:\n    model.module(x).sum().backward()", set()),
        ("for batch in DataLoader(config.data[rank::2]):\n    model(batch).sum().backward()", {"collective-missing"}),
        ("for b in DataLoader(x, sampler=DistributedSampler(x)):\n    model(b).sum().backward()", set()),
        ("with Join([model]):\n    for b in DataLoader(x[rank::2]):\n        model(b).sum().backward()", set()),
    ],
)  # fmt: skip
def test_gradients_are_exchanged_in_backward(check: Check, body: str, rules: set[str]) -> None:
    begin = "model = DistributedDataParallel(config.net)\nx = config.x\n"
    imports = (
        "from torch.nn.parallel import DistributedDataParallel\nfrom torch.utils.data import DataLoader, DistributedSampler\n"
        "from torch.distributed.algorithms.join import Join\n"
    )
    assert {each.rule for each in check(imports + ranks(begin + body)).findings} == rules


def test_a_multi_worker_strategy_runs_on_all_workers(check: Check) -> None:
    text = """
import json, os
import tensorflow as tf

def train(step, batches, task_id):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    for batch in batches:
        strategy.run(step, args=(batch,))
    if task_id == 0:
        total = strategy.reduce("SUM", 1.0, axis=None)
        print(total)
"""
    assert {each.rule for each in check(text).findings} == {"collective-missing"}
    assert not check(text.replace("    if task_id == 0:\n        total", "    if True:\n        total")).findings
    assert not check(text.replace("MultiWorkerMirroredStrategy", "MirroredStrategy")).findings


def test_other_names_of_collectives_and_ranks_come_from_the_configuration(check: Check, tmp_path: Path) -> None:
    text = """
import horovod.torch as hvd

def train(x):
    if hvd.rank() == 0:
        hvd.allreduce(x)
    if hvd.place_in_ring() == 0:
        hvd.allgather(x)
"""
    assert not check(text).findings
    one = check(text, configured(["horovod.torch.allreduce"], None)).findings
    assert [each.line for each in one] == [6]
    names = tmp_path / "names.yaml"
    names.write_text("collectives: [horovod.torch.allgather]\nranks: [place_in_ring]\n")
    assert [each.line for each in check(text, configured([], names)).findings] == [8]


def test_ranks_that_a_program_spawns_are_followed_through_modules(check: Check) -> None:
    helper = "import torch.distributed as d\n\ndef meet(rank):\n    if rank != 0:\n        return\n    d.barrier()\n"
    text = """
import torch.multiprocessing as mp
import torch.distributed as dist
from helper import meet

def worker(rank, world):
    dist.init_process_group("gloo")
    meet(rank)

if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2)
"""
    (found,) = check(text, helper=helper).findings
    assert (Path(found.file).name, found.line, found.rule) == ("helper.py", 6, "collective-missing")
    assert [who for who, _ in found.paths] == ["rank 0", "rank 1"]
    assert any("rank != 0" in step.says for step in found.paths[1][1])
    assert not check(text, helper=helper.replace("        return", "        pass")).findings


def test_a_script_that_reaches_no_collective_has_no_ranks(check: Check) -> None:
    threads = two("with LOCK:\n    with OTHER:\n        pass", "with OTHER:\n    with LOCK:\n        pass")
    (found,) = check(threads, train=ranks("dist.barrier()")).findings
    assert [who for who, _ in found.paths] == ["one", "other"] and "main thread" in found.paths[0][1][0].says
    both = check(
        "import threading as t\nfrom train import main\nfrom run import launch\nt.Thread(target=print).start()\nlaunch(main)",
        run="def launch(f):\n    f()\n",
        train=ranks("if rank == 0:\n    dist.barrier()").partition("if __name__")[0],
    ).findings
    assert [who for each in both for who, _ in each.paths] == ["rank 0", "rank 1"]


THREADS = """
import multiprocessing as mp, os, queue, threading, time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, RLock, Thread

LOCK, OTHER = Lock(), Lock()
QUEUE = queue.Queue(maxsize=2)
READY = threading.Event()
FULL = threading.Condition()
TOTAL = 0

{body}

if __name__ == "__main__":
    main()
"""


def two(first: str, second: str, after: str = "") -> str:
    """A program with two threads."""

    def function(name: str, lines: str) -> str:
        return f"def {name}():\n    global TOTAL\n" + "".join(f"    {line}\n" for line in lines.splitlines())

    body = "ts = [Thread(target=one), Thread(target=other)]\nfor t in ts:\n    t.start()\nfor t in ts:\n    t.join()\n" + after
    return THREADS.format(body="\n".join([function("one", first), function("other", second), function("main", body)]))


BACK = "with OTHER: LOCK.acquire(); LOCK.release()"


@pytest.mark.parametrize(
    ("first", "second", "rules"),
    [
        ("with LOCK:\n    with OTHER:\n        pass", "with OTHER:\n    with LOCK:\n        pass", {"lock-order"}),
        ("with LOCK:\n    with OTHER:\n        pass", "with LOCK:\n    with OTHER:\n        pass", set()),
        ("with LOCK, OTHER:\n    pass", "with OTHER, LOCK:\n    pass", {"lock-order"}),
        ("with LOCK:\n    pass\nwith OTHER:\n    pass", "with OTHER:\n    pass\nwith LOCK:\n    pass", set()),
        (
            "with LOCK:\n    if OTHER.acquire(timeout=1):\n        OTHER.release()",
            "with OTHER:\n    with LOCK:\n        pass",
            set(),
        ),
        ("LOCK.acquire()\nLOCK.acquire()", "pass", {"lock-again"}),
        ("with LOCK:\n    QUEUE.get()", "with LOCK:\n    QUEUE.put(1)", {"lock-held"}),
        ("with LOCK:\n    QUEUE.get()", "QUEUE.put(1)", set()),
        ("with LOCK:\n    READY.wait()", "with LOCK:\n    READY.set()", {"lock-held"}),
        ("READY.wait()", "pass", {"never-signalled"}),
        ("READY.wait(timeout=3)", "pass", set()),
        # Time runs out while the other thread goes on, and what stands behind the wait meets it.
        ("with LOCK:\n    with OTHER:\n        pass", f"while not READY.wait(1):\n    {BACK}", {"lock-order"}),
        ("with LOCK:\n    with OTHER:\n        pass\nREADY.set()", "while not READY.wait(1):\n    pass", set()),
        ("with LOCK:\n    with OTHER:\n        pass\nREADY.set()", f"READY.wait(1)\n{BACK}", {"lock-order"}),
        ("with LOCK:\n    with OTHER:\n        pass\nREADY.set()", f"READY.wait()\n{BACK}", set()),
        ("with LOCK:\n    with OTHER:\n        pass", f"time.sleep(1)\n{BACK}", {"lock-order"}),
        (
            "with LOCK:\n    with OTHER:\n        pass\nQUEUE.put(1)",
            f"try:\n    QUEUE.get(timeout=1)\nexcept queue.Empty:\n    {BACK}",
            {"lock-order"},
        ),
        ("if not READY.wait(60):\n    raise TimeoutError\nQUEUE.put(1)", "READY.set()\nQUEUE.get()", set()),
        ("if not READY.wait(60):\n    return\nQUEUE.put(1)", "READY.set()\nQUEUE.get()", {"never-signalled"}),
        ("TOTAL += 1\nQUEUE.put(1)", "QUEUE.get(timeout=60)\nTOTAL += 1", set()),
        ("with LOCK:\n    TOTAL += 1", "if LOCK.acquire(timeout=1):\n    TOTAL += 1\n    LOCK.release()", set()),
        (
            "with LOCK:\n    with OTHER:\n        TOTAL += 1",
            "if LOCK.acquire(timeout=1):\n    LOCK.release()\nelse:\n    TOTAL += 1",
            {"race"},
        ),
        (
            "with LOCK:\n    with FULL:\n        pass",
            "with FULL:\n    FULL.wait(1)\n    with LOCK:\n        pass",
            {"lock-order"},
        ),
        ("with LOCK:\n    with FULL:\n        pass", "with FULL:\n    FULL.wait(1)\nwith LOCK:\n    pass", set()),
        ("QUEUE.get()", "QUEUE.put(1)", set()),
        ("QUEUE.get()", "pass", {"never-signalled"}),
        ("for n in range(9):\n    QUEUE.put(n)", "QUEUE.get()", {"queue-deadlock"}),
        ("for n in range(3):\n    QUEUE.put(n)", "QUEUE.get()", set()),
        ("TOTAL += 1", "TOTAL += 1", {"race"}),
        ("with LOCK:\n    TOTAL += 1", "with LOCK:\n    TOTAL += 1", set()),
        ("with LOCK:\n    TOTAL += 1", "with OTHER:\n    TOTAL += 1", {"race"}),
        ("TOTAL += 1\nREADY.set()", "READY.wait()\nTOTAL += 1", set()),
        ("TOTAL += 1\nQUEUE.put(1)", "QUEUE.get()\nTOTAL += 1", set()),
        ("TOTAL = 5", "print(TOTAL)", set()),
        ("TOTAL = 5", "TOTAL = 6", set()),
    ],
)
def test_threads_that_wait_for_each_other_or_race_are_found(check: Check, first: str, second: str, rules: set[str]) -> None:
    assert {each.rule for each in check(two(first, second)).findings} == rules


@pytest.mark.parametrize(
    ("main", "rules"),
    [
        ("Thread(target=work).start()\n    os.fork()", {"fork-after-threads"}),
        ("t = Thread(target=work)\n    t.start()\n    t.join()\n    os.fork()", set()),
        ("Thread(target=work).start()\n    mp.Process(target=idle).start()\n    READY.set()", {"fork-after-threads"}),
        (
            "c = mp.get_context('spawn')\n    Thread(target=work).start()\n    c.Process(target=idle).start()\n    READY.set()",
            set(),
        ),
    ],
)  # fmt: skip
def test_a_fork_beside_threads_is_found(check: Check, main: str, rules: set[str]) -> None:
    wait = "READY.wait()" if "READY" in main or ("fork" in main and "join" not in main) else "pass"
    body = f"def idle():\n    pass\n\ndef work():\n    {wait}\n\ndef main():\n    {main}\n    READY.set()"
    assert {each.rule for each in check(THREADS.format(body=body)).findings} == rules


def test_methods_that_take_the_locks_of_their_object_in_two_orders_are_found(check: Check) -> None:
    text = """
import threading

class Store:
    def __init__(self):
        self.a, self.b = threading.Lock(), threading.Lock()

    def read(self):
        with self.a:
            with self.b:
                return 1

    def write(self):
        with self.b:
            with self.a:
                return 2
"""
    text = text.replace(
        "self.a, self.b = threading.Lock(), threading.Lock()", "self.a = threading.Lock()\n        self.b = threading.Lock()"
    )
    (found,) = check(text).findings
    assert found.rule == "lock-order" and {line for _, line in found.places} == {11, 16}
    assert not check(text.replace("with self.b:\n            with self.a", "with self.a:\n            with self.b")).findings


RING = """
class Ring:
    def __init__(self, size):
        self.items, self.size, self.closed = deque(), size, False
        self.cond = threading.Condition()

    def put(self, x):
        with self.cond:
            while len(self.items) >= self.size and not self.closed:
                self.cond.wait()
            self.items.append(x)
            self.cond.notify_all()

    def get(self):
        with self.cond:
            while not self.items and not self.closed:
                self.cond.wait()
            if not self.items:
                return None
            self.cond.notify_all()
            return self.items.popleft()

    def close(self):
        with self.cond:
            self.closed = True
            self.cond.notify_all()

def fill(ring, n):
    for i in range(n):
        ring.put(i)
    ring.close()

def main():
    ring = Ring(4)
    filler = Thread(target=fill, args=(ring, 10))
    filler.start()
    while ring.get() is not None:
        pass
    filler.join()
"""


def test_a_buffer_is_not_taken_for_full_and_empty_at_once(check: Check) -> None:
    text = THREADS.format(body="from collections import deque\n" + RING)
    assert not check(text).findings
    apart = text.replace(
        "    while ring.get() is not None:\n        pass\n",
        "    taker = Thread(target=take, args=(ring,))\n    taker.start()\n",
    )
    take = "def take(ring):\n    while ring.get() is not None:\n        pass\n\n"
    assert not check(
        apart.replace("def main", take + "def main").replace("filler.join()", "filler.join()\n    taker.join()")
    ).findings
    # One unknown test alone is no excuse.
    unbounded = text.replace("len(self.items) >= self.size and not self.closed", "False")
    assert not check(unbounded).findings
    silent = unbounded.replace("self.items.append(x)\n            self.cond.notify_all()", "self.items.append(x)")
    assert {each.rule for each in check(silent.replace("ring.close()", "pass")).findings} == {"never-signalled"}


def test_a_queue_that_unknown_code_gets_is_not_judged(check: Check) -> None:
    main = "    import elsewhere\n    elsewhere.attach(QUEUE)\n    Thread(target=idle).start()\n    QUEUE.get()"
    text = THREADS.format(body=f"def idle():\n    READY.is_set()\n\ndef main():\n{main}")
    assert not check(text).findings
    assert {each.rule for each in check(text.replace("elsewhere.attach(QUEUE)", "pass")).findings} == {"never-signalled"}


def test_a_generator_and_a_context_manager_run_where_they_are_used(check: Check) -> None:
    text = THREADS.format(
        body="""
import contextlib

@contextlib.contextmanager
def held():
    with LOCK:
        yield

def items():
    for n in range(2):
        yield n
        QUEUE.put(n)

def main():
    for n in items():
        with held():
            with held():
                pass
"""
    )
    assert {each.rule for each in check(text).findings} == {"lock-again"}
    assert not check(text.replace("            with held():\n                pass", "            pass")).findings


def test_objects_that_each_thread_makes_for_itself_are_not_taken_for_one(check: Check) -> None:
    """The object of a thread that has ended is gone, and the next one may lie in the same memory."""
    text = """
        import secrets, threading
        class Challenge:
            def __init__(self, secret):
                self.own = secret
        def meet(secret):
            challenge = Challenge(secret)
            return len(challenge.own)
        def main():
            owners = [threading.Thread(target=meet, args=(secrets.token_bytes(9),)) for _ in range(4)]
            for each in owners:
                each.start()
            for each in owners:
                each.join()
        main()
    """
    assert check(textwrap.dedent(text)).findings == []


def test_what_was_not_explored_is_said(check: Check, tmp_path: Path) -> None:
    lines = "\n".join(f"if config.a{n}:\n    with LOCK:\n        pass" for n in range(12))
    body = "def main(config):\n" + "".join(f"    {line}\n" for line in lines.splitlines()) + "    Thread(target=main).start()\n"
    (tmp_path / "big.py").write_text(THREADS.format(body=body))
    program = Program(sources.read(str(tmp_path / "big.py")), Meanings())
    short = search(program, nodes=100, seconds=20)
    assert short.nodes <= 101 and short.left[0].endswith(": explored in part: 100 nodes (--nodes)")
    late = search(program, nodes=10**6, seconds=0.0)
    assert late.left and late.left[0].endswith("not begun: 0 s (--search-seconds)")
    for times, most, why in (
        (2, UNUSUAL, []),
        (3, UNUSUAL, ["executions with more than 2 unusual decisions left out"]),
        (3, 3, []),
    ):
        branches = (f"    if config.a{n}:\n        LOCK.acquire()\n        LOCK.release()\n" for n in range(times))
        body = "def main(config):\n" + "".join(branches)
        (tmp_path / "big.py").write_text(THREADS.format(body=body).replace("    main()", "    main(os.environ)"))
        whole = search(Program(sources.read(str(tmp_path / "big.py")), Meanings()), nodes=10**5, seconds=20, unusual=most)
        assert [each.partition(": explored in part: ")[2] for each in whole.left] == why

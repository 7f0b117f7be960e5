"""Each rule on small programs: what it finds stands beside what it lets through."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from convtwins_hangs.concurrency import sources
from convtwins_hangs.concurrency.meanings import KnownNames, read_known_names
from convtwins_hangs.concurrency.program import Program
from convtwins_hangs.concurrency.search import UNUSUAL, SearchResult, search

Check = Callable[..., SearchResult]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def checked(text: str, meanings: KnownNames | None = None, **others: str) -> SearchResult:
        for name, source in {"program": text, **others}.items():
            (tmp_path / f"{name}.py").write_text(source)
        return search(Program(sources.read(str(tmp_path)), meanings or KnownNames()), nodes=20_000, seconds=20)

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


FLAG = """
class Box:
    pass

box = Box()
box.flag = {start}
if {test}:
    {write}
if box.flag:
    dist.barrier()
"""


@pytest.mark.parametrize("write", ["box.flag = {}", "box.flag: object = {}"])
@pytest.mark.parametrize(
    ("test", "start", "value", "rules"),
    [
        ("time.time() > 9", "False", "True", {"collective-missing"}),  # a branch that is skipped
        ("config.sync", "False", "True", set()),
        ("rank == 0", "0", "1", {"collective-missing"}),
    ],
)
def test_an_attribute_that_a_branch_sets_parts_the_ranks_with_an_annotation_too(
    check: Check, write: str, test: str, start: str, value: str, rules: set[str]
) -> None:
    body = FLAG.format(start=start, test=test, write=write.format(value))
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
    one = check(text, read_known_names(["horovod.torch.allreduce"], None)).findings
    assert [each.line for each in one] == [6]
    names = tmp_path / "names.yaml"
    names.write_text("collectives: [horovod.torch.allgather]\nranks: [place_in_ring]\n")
    assert [each.line for each in check(text, read_known_names([], names)).findings] == [8]


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
    assert found.rule == "lock-order" and {line for _, line in found.locations} == {11, 16}
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
    program = Program(sources.read(str(tmp_path / "big.py")), KnownNames())
    short = search(program, nodes=100, seconds=20)
    assert short.nodes <= 101 and short.unexplored[0].endswith(": explored in part: 100 nodes (--nodes)")
    late = search(program, nodes=10**6, seconds=0.0)
    assert late.unexplored and late.unexplored[0].endswith("not begun: 0 s (--search-seconds)")
    for times, most, why in (
        (2, UNUSUAL, []),
        (3, UNUSUAL, ["executions with more than 2 unusual decisions left out"]),
        (3, 3, []),
    ):
        branches = (f"    if config.a{n}:\n        LOCK.acquire()\n        LOCK.release()\n" for n in range(times))
        body = "def main(config):\n" + "".join(branches)
        (tmp_path / "big.py").write_text(THREADS.format(body=body).replace("    main()", "    main(os.environ)"))
        whole = search(Program(sources.read(str(tmp_path / "big.py")), KnownNames()), nodes=10**5, seconds=20, unusual=most)
        assert [each.partition(": explored in part: ")[2] for each in whole.unexplored] == why


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (
            "import torch.distributed as dist\ndef sync(rank):\n    if rank == 0:\n        dist.barrier()\n",
            {"collective-missing"},
        ),
        ("import torch.distributed as dist\ndef sync(rank):\n    print(rank)\n    dist.barrier()\n", set()),
        (
            "from torch.distributed import reduce as add\ndef sum_up(x, rank):\n    if rank == 0:\n        add(x, dst=0)\n",
            {"collective-missing"},
        ),
        ("from functools import reduce\ndef sum_up(x, rank):\n    if rank == 0:\n        reduce(max, x)\n", set()),
        (
            "import torch.distributed as d\ndef take(x, rank):\n    if rank == 0:\n        d.recv(x, src=1)\n",
            {"point-to-point"},
        ),
        (
            "def share(x, rank):\n    from torch.distributed import gather\n    if rank == 0:\n        gather(x)\n",
            {"collective-missing"},
        ),
        (
            "from torch.nn.parallel import DistributedDataParallel as DDP\n"
            "def build(net, rank):\n    if rank == 0:\n        return DDP(net)\n",
            {"collective-missing"},
        ),
    ],
)
def test_a_function_that_nobody_calls_is_run_by_ranks_whatever_its_collective_is_called(
    check: Check, text: str, rules: set[str]
) -> None:
    assert {each.rule for each in check(text).findings} == rules


def test_every_collective_that_is_known_makes_its_caller_run_by_ranks(check: Check) -> None:
    for name in ("all_to_all", "gather", "monitored_barrier", "reduce", "reduce_scatter", "scatter", "scatter_object_list"):
        text = f"import torch.distributed as dist\ndef once(x, rank):\n    if rank == 0:\n        dist.{name}(x)\n"
        assert {each.rule for each in check(text).findings} == {"collective-missing"}, name


ACCELERATED = """
from accelerate import Accelerator

class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()

    def score(self, batch):
{body}

def main(batch):
    Trainer().score(batch)

if __name__ == "__main__":
    main(None)
"""


@pytest.mark.parametrize(
    ("body", "named", "rules"),
    [
        ("a = self.accelerator\nif a.is_main_process:\n    print(a.gather(batch))", (), {"collective-missing"}),
        ("a = self.accelerator\nfound = a.gather(batch)\nif a.is_main_process:\n    print(found)", (), set()),
        (
            "if self.accelerator.is_main_process:\n    self.accelerator.gather_for_metrics(batch)",
            ("accelerate.Accelerator.gather_for_metrics",),
            {"collective-missing"},
        ),
        ("if self.accelerator.is_main_process:\n    self.accelerator.print(batch)", (), set()),
        ("if self.accelerator.is_main_process:\n    self.accelerator.prepare(batch)", (), set()),
        (
            "if self.accelerator.is_main_process:\n    self.accelerator.prepare(batch)",
            ("accelerate.Accelerator.prepare",),
            {"collective-missing"},
        ),
    ],
)
def test_methods_of_what_a_library_makes_are_collectives(
    check: Check, body: str, named: tuple[str, ...], rules: set[str]
) -> None:
    text = ACCELERATED.format(body=textwrap.indent(body, " " * 8))
    assert {each.rule for each in check(text, read_known_names(named, None)).findings} == rules


def test_a_method_that_is_named_is_a_collective_of_an_object_whose_class_is_not_known(check: Check) -> None:
    text = "def save(comm, x, rank):\n    if rank == 0:\n        comm.collect(x)\n"
    assert not check(text).findings
    assert {each.rule for each in check(text, read_known_names(["collect"], None)).findings} == {"collective-missing"}


ORDERS = """
from threading import Lock, Thread

{locks}

def one():
    with {first}:
        with {second}:
            pass

def two():
    with {third}:
        with {fourth}:
            pass

def main():
    threads = [Thread(target=one), Thread(target=two)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


@pytest.mark.parametrize(
    ("locks", "names"),
    [
        ("A, B = Lock(), Lock()", ("A", "B")),
        ("(A, (B, C)) = (Lock(), (Lock(), Lock()))", ("A", "C")),
        ("A: Lock = Lock()\nB = C = Lock()", ("A", "C")),
        ("LOCKS = [Lock(), Lock()]", ("LOCKS[0]", "LOCKS[1]")),
        ("class Of:\n    a, b = Lock(), Lock()", ("Of.a", "Of.b")),
        ("class Of:\n    a: Lock = Lock()\n    b: Lock = Lock()", ("Of.a", "Of.b")),
    ],
)
def test_locks_that_a_module_or_class_unpacks_are_known_in_a_function(check: Check, locks: str, names: tuple[str, str]) -> None:
    a, b = names
    assert {each.rule for each in check(ORDERS.format(locks=locks, first=a, second=b, third=b, fourth=a)).findings} == {
        "lock-order"
    }
    assert not check(ORDERS.format(locks=locks, first=a, second=b, third=a, fourth=b)).findings


def test_two_names_of_one_lock_are_one_lock(check: Check) -> None:
    text = ORDERS.format(locks="A = B = Lock()", first="A", second="B", third="A", fourth="B")
    assert {each.rule for each in check(text).findings} == {"lock-again"}


READING = """
import torch.distributed as dist
from elsewhere import RemoteError, load

class BadImage(Exception):
    pass

class Truncated(BadImage):
    pass

def read(path):
    data = load(path)
    if data is None:
        raise Truncated(path)
    return data

def main():
    dist.init_process_group("gloo")
    for path in load.paths:
        try:
            x = {call}
        except {kind}:
            continue
        dist.all_reduce(x)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("call", "kind", "rules"),
    [
        *(("load(path)", kind, {"collective-missing"}) for kind in ("MemoryError", "KeyError", "RemoteError")),
        ("load(path)", "(ImportError, OSError)", {"collective-missing"}),
        *(("load(path)", kind, set()) for kind in ("ImportError", "(AttributeError, TypeError)", "BadImage")),
        *(("read(path)", kind, {"collective-missing"}) for kind in ("Truncated", "BadImage", "IndexError")),
        ("read(path)", "ImportError", set()),
    ],
)  # fmt: skip
def test_any_kind_of_error_may_come_to_one_rank_alone_but_those_of_the_program_itself(
    check: Check, call: str, kind: str, rules: set[str]
) -> None:
    assert {each.rule for each in check(READING.format(call=call, kind=kind)).findings} == rules


def test_an_error_of_the_package_comes_only_from_where_it_is_raised(check: Check) -> None:
    text = """
import torch.distributed as dist
from elsewhere import load

class Stop(Exception):
    pass

def main():
    dist.init_process_group("gloo")
    try:
        for path in load.paths:
            dist.all_reduce(load(path))
            if path == load.last:
                raise Stop
    except Stop:
        pass
    dist.barrier()

if __name__ == "__main__":
    main()
"""
    assert not check(text).findings


SHARING = """
import torch.distributed as dist

def send(items):
    for each in {sent}:
        dist.broadcast(each, 0)

def receive(items, config):
    for each in {received}:
        dist.broadcast(each, 0)

def share(config):
    items = config.load()
    if dist.get_rank() == 0:
        send(items)
    else:
        receive(items, config)
"""


@pytest.mark.parametrize(
    ("sent", "received", "rules"),
    [
        ("items.values()", "items.values()", set()),
        ("items.values()", "sorted(items.keys())", set()),
        ("items", "range(len(items))", set()),
        ("items.copy()", "list(enumerate(items))", set()),
        ("items.parts", "items.parts.values()", set()),
        ("items.values()", "config.load().values()", {"collective-missing"}),
        ("items.parts", "items.others", {"collective-missing"}),
    ],
)
def test_loops_over_the_same_have_as_many_turns_on_all_ranks(check: Check, sent: str, received: str, rules: set[str]) -> None:
    assert {each.rule for each in check(SHARING.format(sent=sent, received=received)).findings} == rules


COUNTING = """
import threading

class Counts:
    def __init__(self):
        self.of, self.rows = {{"cat": 0, "dog": 0}}, [0, 0]
        self.lock = threading.Lock()

    def note(self):
        for _ in range(9):
            {update}

def main():
    counts = Counts()
    threads = [threading.Thread(target=counts.note) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


@pytest.mark.parametrize(
    ("update", "rules"),
    [
        ('self.of["cat"] += 1', {"race"}),
        ('self.of["cat"] = self.of["cat"] + 1', {"race"}),
        ('self.of["cat"] = self.of.get("cat", 0) + 1', {"race"}),
        ('self.of["cat"] = max(self.of.setdefault("cat", 0), 3)', {"race"}),
        ('seen = self.of.pop("cat"); self.of["cat"] = 1 + seen', {"race"}),
        ("self.rows[1] = self.rows[1] + 1", {"race"}),
        ('self.of["cat"] = self.of.get("dog", 0) + 1', set()),
        ('self.of["cat"] = 5', set()),
        ('with self.lock: self.of["cat"] = self.of.get("cat", 0) + 1', set()),
    ],
)
def test_an_item_that_is_read_and_written_back_is_updated(check: Check, update: str, rules: set[str]) -> None:
    assert {each.rule for each in check(COUNTING.format(update=update)).findings} == rules


WORKERS = """
import multiprocessing as mp
import threading
import numpy as np

def work(number, queue, data, model):
{put}

def main(data, model):
    queue = mp.Queue()
    workers = [{kind}(target=work, args=(n, queue, data, model)) for n in range(2)]
    for each in workers:
        each.start()
{end}
"""
JOINED = "    for each in workers:\n        each.join()\n"
TAKEN_OUT = "    found = [queue.get() for _ in workers]\n"


@pytest.mark.parametrize(
    ("put", "is_large"),
    [
        ("queue.put((number, np.random.rand(1000, 1000)))", True),
        ("queue.put(model.state_dict())", True),
        ("queue.put([0.5] * 100_000)", True),
        ("queue.put([each for each in data])", True),
        ("rows = []\nfor each in data:\n    rows.append(each)\nqueue.put(rows)", True),
        ("for row in range(20_000):\n    queue.put((number, row))", True),
        ("for row in range(20):\n    queue.put((number, row))", False),
        ("queue.put((number, 'done', 0.5))", False),
        ("queue.put(float(np.random.rand(1000, 1000).mean()))", False),
        ("queue.put(np.zeros(3))", False),
        ("total = 0\nfor each in data:\n    total += each\nqueue.put(total / 3)", False),
    ],
)
def test_a_process_is_read_before_it_is_joined_if_it_puts_more_than_a_pipe_holds(
    check: Check, put: str, is_large: bool
) -> None:
    def found(end: str, kind: str = "mp.Process") -> set[str]:
        return {each.rule for each in check(WORKERS.format(put=textwrap.indent(put, "    "), kind=kind, end=end)).findings}

    assert found(JOINED + TAKEN_OUT) == ({"queue-join"} if is_large else set())
    assert found(JOINED + "    first = queue.get()\n") == ({"queue-join"} if is_large else set())
    assert found(TAKEN_OUT + JOINED) == set()
    assert found(JOINED.replace("join()", "join(5)") + TAKEN_OUT) == set()
    assert found("    queue.cancel_join_thread()\n" + JOINED + TAKEN_OUT) == set()
    assert found(JOINED + TAKEN_OUT, "threading.Thread") == set()


@pytest.mark.parametrize(
    ("body", "rules"),
    [
        ("dist.new_group([0, 1] if rank == 0 else [1])", {"collective-group"}),
        ("dist.new_group(ranks=[each for each in range(2) if each <= rank])", {"collective-group"}),
        ("mine = [0, 1, 2] if rank == 0 else [1, 2]\ndist.new_group(mine)", {"collective-group"}),
        ("dist.new_group([0, 1] if rank == 0 else [1, 0])", set()),
        ("dist.new_group([rank])", set()),
        ("dist.new_group([0, 1] if rank == 0 else [1], use_local_synchronization=True)", set()),
        ("both = [0, 1]\ndist.new_group(ranks=both)\ndist.new_group([0])\ndist.new_group([1])", set()),
        ("first = [0, 2]\ng = dist.new_group(first)\nif rank == 2:\n    dist.barrier(g)", {"collective-missing"}),
    ],
)
def test_ranks_make_groups_of_the_same_ranks(check: Check, body: str, rules: set[str]) -> None:
    assert {each.rule for each in check(ranks(body)).findings} == rules


NORMED = """
import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3)

@torch.no_grad()
def validate(net, loader):
    for batch in loader:
        net(batch)

def main(loader):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP({net})
    for batch in loader:
        model(batch).sum().backward()
{body}
    dist.barrier()

if __name__ == "__main__":
    main(None)
"""


@pytest.mark.parametrize(
    ("net", "body", "rules"),
    [
        ("Net().cuda()", "if rank == 0:\n    model(loader)", {"collective-missing"}),
        ("torch.nn.Sequential(Net())", "if rank == 0:\n    model(loader)", {"collective-missing"}),
        ("torch.nn.Sequential(torch.nn.BatchNorm2d(3))", "if rank == 0:\n    model(loader)", {"collective-missing"}),
        ("torchvision.models.resnet18()", "if rank == 0:\n    model(loader)", {"collective-missing"}),
        ("Net()", "if rank == 0:\n    with torch.no_grad():\n        model(loader)", {"collective-missing"}),
        ("Net()", "if rank == 0:\n    validate(model, loader)", {"collective-missing"}),
        ("Net()", "validate(model, [loader, loader])", set()),
        ("Net()", "if rank == 0:\n    validate(model.module, loader)", set()),
        ("Net(), broadcast_buffers=False", "if rank == 0:\n    model(loader)", set()),
        ("torch.nn.Linear(2, 2)", "if rank == 0:\n    model(loader)", set()),
        ("torchvision.models.vgg16()", "if rank == 0:\n    model(loader)", set()),
        ("Net()", "model(loader)", set()),
        ("Net()", "with torch.no_grad():\n    model(loader)\n    if rank == 0:\n        model(loader)", set()),
    ],
)
def test_a_model_with_buffers_exchanges_them_in_forward_unless_the_last_made_no_gradients(
    check: Check, net: str, body: str, rules: set[str]
) -> None:
    text = NORMED.format(net=net, body=textwrap.indent(body, "    "))
    assert {each.rule for each in check(text).findings} == rules


SHARED = """
import threading

class Box:
    pass

def work(box, data):
{writes}

def main(data):
    box = Box()
    thread = threading.Thread(target=work, args=(box, data))
    thread.start()
    print(box.result)
    thread.join()
"""


@pytest.mark.parametrize(
    ("writes", "rules"),
    [
        ("box.result = sum(data)", {"read-before-join"}),
        ("box.result: float = sum(data)", {"read-before-join"}),
        ("begun = True\n    box.result: float = sum(data)", {"read-before-join"}),
        ("begun = True\n    with open('x') as box.result:\n        pass", {"read-before-join"}),
        ("box.result = True", set()),
        ("box.result: bool = True", set()),
        ("count = sum(data)\n    box.result: bool = True", set()),
    ],
)  # fmt: skip
def test_only_a_constant_is_a_flag_however_it_is_assigned(check: Check, writes: str, rules: set[str]) -> None:
    assert {each.rule for each in check(SHARED.format(writes=f"    {writes}")).findings} == rules


def test_what_an_inner_function_counts_is_counted_in_the_outer_one(check: Check) -> None:
    text = """
count = 0

def step():
    nonlocal count
    count += 1

step()
step()
if count {test}:
    if rank == 0:
        dist.barrier()
"""
    assert {each.rule for each in check(ranks(text.format(test="== 2"))).findings} == {"collective-missing"}
    assert not check(ranks(text.format(test="!= 2"))).findings


@pytest.mark.parametrize("test", ["config.more", "not config.done", "not (not config.more)"])
def test_what_stands_behind_a_loop_is_reached_without_an_unusual_decision(tmp_path: Path, test: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(ranks(f"while {test}:\n    dist.barrier()\nif rank == 0:\n    dist.barrier()"))
    found = search(Program(sources.read(str(program)), KnownNames()), nodes=20_000, seconds=20, unusual=0).findings
    assert {each.rule for each in found} == {"collective-missing"}

"""What ranks have alike and what differs between them: a planted defect stands beside a correct program."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from convtwins_hangs.concurrency import sources
from convtwins_hangs.concurrency.meanings import KnownNames
from convtwins_hangs.concurrency.program import Program
from convtwins_hangs.concurrency.search import SearchResult, search


def searched(text: str, folder: Path, nodes: int = 20_000) -> SearchResult:
    (folder / "program.py").write_text(text)
    return search(Program(sources.read(str(folder / "program.py")), KnownNames()), nodes=nodes, seconds=20)


def rules(text: str, folder: Path) -> set[str]:
    return {each.rule for each in searched(text, folder).findings}


WRITER = """
import queue, threading
import torch.distributed as dist

def write(q):
    while True:
        if q.get() is None:
            break

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    q = queue.Queue(8)
    if rank == 0:
        threading.Thread(target=write, args=(q,), daemon=True).start()
    for epoch in range(20):
        if rank == 0:
            q.put(epoch)
        dist.barrier()

if __name__ == "__main__":
    main()
"""
STARTED = "threading.Thread(target=write, args=(q,), daemon=True).start()"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", set()),
        ("range(20)", "range(3)", set()),
        ("range(20)", "range(dist.steps)", set()),
        ("    q = queue.Queue(8)\n    if rank == 0:\n", "    if rank == 0:\n        q = queue.Queue(8)\n", set()),
        (STARTED, "pass", {"collective-missing"}),
        ("range(20)", "range(3 - rank)", {"collective-missing"}),
    ],
)
def test_a_loop_ends_at_the_same_turn_on_all_ranks_whatever_queues_each_has(
    before: str, after: str, expected: set[str], tmp_path: Path
) -> None:
    assert rules(WRITER.replace(before, after) if before else WRITER, tmp_path) == expected


LOADED = """
import os, queue, threading
import torch.distributed as dist
import torch.multiprocessing as mp

STEPS = int(os.environ.get("STEPS", "20"))

def load(rank, q):
    for _ in range(2 * STEPS):
        q.put(1)
    q.put(None)

def work(rank, world):
    dist.init_process_group("gloo")
    q = queue.Queue(4)
    threading.Thread(target=load, args=(rank, q), daemon=True).start()
    while True:
        batch = q.get()
        if batch is None:
            break
        dist.barrier()

if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("STEPS))", "STEPS))", set()),
        ("range(2 * STEPS)", "range(40)", set()),
        ("range(2 * STEPS)", "range(2 * STEPS + rank)", {"collective-missing"}),
        ("q.put(None)", "pass", {"never-signalled"}),
    ],
)
def test_an_unknown_bound_in_a_thread_is_the_same_on_all_ranks(
    before: str, after: str, expected: set[str], tmp_path: Path
) -> None:
    assert rules(LOADED.replace(before, after), tmp_path) == expected


STOP = """
import argparse
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
{helper}
def validate(model, loader):
    counts = torch.zeros(2)
    for x, y in loader:
        counts[0] += (model(x) == y).sum()
        counts[1] += len(y)
    {reduce}
    return counts[0].item() / counts[1].item()

def main():
    args = argparse.ArgumentParser().parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, loader = torch.nn.Linear(2, 2), DataLoader(args.data)
    best, bad = 0.0, 0
    for epoch in range(args.epochs):
        dist.barrier()
        accuracy = validate(model, loader)
        {count}
        {share}
        if bad >= args.patience:
            break
    dist.barrier()

if __name__ == "__main__":
    main()
"""
COUNT = "if accuracy > best:\n{0}    best, bad = accuracy, 0\n{0}else:\n{0}    bad += 1"
ALL, FIRST = COUNT.format(" " * 8), f"if rank == 0:\n            {COUNT.format(' ' * 12)}"
SHARE = "box = torch.tensor([bad])\n        dist.broadcast(box, 0)\n        bad = box.item()"
TAKEN = SHARE.replace("bad = box", "if rank > 0:\n            bad = box")
MOVED = TAKEN.replace("([bad])", "([bad]).to(args.device)")
FILLED = TAKEN.replace("torch.tensor([bad])", "torch.zeros(1)\n        if rank == 0:\n            box[0] = bad")
ITEM = "box = [bad]\n        dist.broadcast_object_list(box, 0)\n        if rank > 0:\n            bad = box[0]"
BOX = "box = [None]\n        if rank == 0:\n            box[0] = bad\n        "
IN_LIST = BOX + "dist.broadcast_object_list(box, 0)\n        bad = box[0]"
SUM = "dist.all_reduce(counts)"
OTHER = "from elsewhere import broadcast_number\n"


@pytest.mark.parametrize(
    ("reduce", "count", "share", "helper", "expected"),
    [
        (SUM, ALL, "pass", "", set()),
        (SUM, FIRST, SHARE, "", set()),
        (SUM, FIRST, TAKEN, "", set()),
        (SUM, FIRST.replace("rank == 0", "rank == 0 and args.watch"), TAKEN, "", set()),
        ("pass", ALL, MOVED, "", set()),
        ("pass", ALL, FILLED, "", set()),
        ("pass", ALL, FILLED.replace("broadcast", "all_reduce"), "", {"collective-missing"}),
        ("pass", ALL, TAKEN.replace("rank > 0", "rank > 1"), "", {"collective-missing"}),
        (SUM, FIRST, ITEM, "", set()),
        (SUM, FIRST, IN_LIST, "", set()),
        (SUM, FIRST, "bad = broadcast_number(bad)", OTHER, set()),
        ("pass", ALL, SHARE, "", set()),
        ("pass", ALL, ITEM, "", set()),
        (SUM, FIRST, "pass", "", {"collective-missing"}),
        (SUM, "if rank == 0:\n            bad += 1", "pass", "", {"collective-missing"}),
        (SUM, "if rank == 0:\n            bad = 3\n        else:\n            bad = 0", "pass", "", {"collective-missing"}),
        ("pass", ALL, "pass", "", {"collective-missing"}),
        ("pass", FIRST, "pass", "", {"collective-missing"}),
    ],
)
def test_a_number_that_one_rank_counts_or_that_is_of_its_own_data_differs_by_rank(
    reduce: str, count: str, share: str, helper: str, expected: set[str], tmp_path: Path
) -> None:
    assert rules(STOP.format(reduce=reduce, count=count, share=share, helper=helper), tmp_path) == expected


COUNTS = """
import torch
import torch.distributed as dist

class Meter:
    def __init__(self, most):
        self.best, self.bad, self.most = 0.0, 0, most

    def tick(self):
        self.bad += 1

    def judge(self, score):
        if score > self.best:
            self.best, self.bad = score, 0
        else:
            self.bad += 1
        return self.bad >= self.most

def main(config):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    meter, seen = Meter(5), 0
    for step in range({turns}):
        score = torch.ones(1)
        dist.all_reduce(score)
        {body}
    dist.barrier()

if __name__ == "__main__":
    main(open("config"))
"""
FIRST_ALONE = "if rank == 0:\n            "


@pytest.mark.parametrize("turns", ["12", "5000", "config.steps"])
@pytest.mark.parametrize(
    ("alone", "after"),
    [
        ("seen += 1", "if seen and seen % 5 == 0:\n            dist.barrier()"),
        ("seen += 1", "due = seen > 7\n        if due:\n            dist.barrier()"),
        ("meter.bad += 1", "if meter.bad >= meter.most:\n            break"),
        ("meter.tick()", "if meter.bad >= meter.most:\n            break"),
        ("seen = meter.judge(score.item())", "if seen:\n            break"),
    ],
)
def test_what_one_rank_alone_counts_is_found_however_late_it_is_asked_and_what_all_count_is_let_through(
    alone: str, after: str, turns: str, tmp_path: Path
) -> None:
    planted = COUNTS.format(turns=turns, body=f"{FIRST_ALONE}{alone}\n        {after}")
    assert rules(planted, tmp_path) == {"collective-missing"}
    assert rules(COUNTS.format(turns=turns, body=f"{alone}\n        {after}"), tmp_path) == set()


def test_an_object_whose_counts_are_not_followed_stops_one_rank_alone(tmp_path: Path) -> None:
    alone = "if rank == 0 and meter.judge(score.item()):\n            break"
    assert rules(COUNTS.format(turns=30, body=alone), tmp_path) == {"collective-missing"}
    assert rules(COUNTS.format(turns=30, body=alone.replace("rank == 0 and ", "")), tmp_path) == set()


@pytest.mark.parametrize(
    ("turns", "test", "left"),
    [
        ("30", "step % 8 == 7", []),
        ("300", "step % 8 == 7", ["a loop of 300 turns (line 23) followed for 2"]),
        ("300", "config.often", []),
        ("config.steps", "seen > 8", ["a loop of unknown turns (line 23) followed for 2"]),
    ],
)
def test_a_loop_is_followed_to_the_turn_that_a_test_asks_for_or_is_said_to_be_explored_in_part(
    turns: str, test: str, left: list[str], tmp_path: Path
) -> None:
    body = f"seen += 1\n        if {test}:\n            if rank == 0:\n                dist.barrier()"
    done = searched(COUNTS.format(turns=turns, body=body), tmp_path)
    assert [each.partition("explored in part: ")[2] for each in done.unexplored] == left
    assert {each.rule for each in done.findings} == (set() if left else {"collective-missing"})


DATA = """
import math
import torch
import torch.distributed as dist
from project import reduce_mean, evaluate
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Shard(Dataset):
    def __init__(self, rank):
        self.items = torch.load(f"part-{{rank}}.pt")

    def __len__(self):
        return len(self.items)

class Stopper:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.stop = patience, None, 0, False

    def __call__(self, value):
        if self.best is None or value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
            if self.bad >= self.patience:
                self.stop = True

def validate(model, loader):
    total, count = 0.0, 0
    for x, y in loader:
        total += model(x, y).item()
        count += 1
    return total / count

def train(model, train_loader, val_loader, args):
    dist.init_process_group("gloo")
    rank, stopper, lines = dist.get_rank(), Stopper(args.patience), open(args.lines.format(dist.get_rank())).readlines()
    for epoch in range(args.epochs):
{epoch}
        dist.barrier()
    dist.barrier()
"""
STEP = "for x, y in train_loader:\n    loss = model(x, y)\n    {0}\n    dist.all_reduce(x)"
FINITE = "if not math.isfinite({0}):\n        continue"
STOPS = "val = validate(model, val_loader)\n{0}\nstopper(val)\nif stopper.stop:\n    break"
GATHERED = "every = [None, None]\ndist.all_gather_object(every, val)\nval = sum(every) / len(every)"
TURNS = "for x in {0}:\n    dist.all_reduce(x)"


@pytest.mark.parametrize(
    ("planted", "correct", "named"),
    [
        (
            STEP.format(FINITE.format("loss.item()")),
            STEP.format("dist.all_reduce(loss)\n    " + FINITE.format("loss.item()")),
            "not math.isfinite(loss.item())",
        ),
        (
            STEP.format(FINITE.format("loss")),
            STEP.format("loss = reduce_mean(loss)\n    " + FINITE.format("loss")),
            "not math.isfinite(loss)",
        ),
        (
            STEP.format("if torch.isnan(x).any():\n        break"),
            STEP.format("if torch.isnan(x).any():\n        raise SystemExit(1)"),
            "torch.isnan(x).any()",
        ),
        (STEP.format("if loss > 9:\n        continue"), STEP.format("if args.loss == 9:\n        continue"), "loss > 9"),
        (STEP.format("if y.max() > 3:\n        continue"), STEP.format("if x.shape[0] < 4:\n        continue"), "y.max() > 3"),
        (STOPS.format("pass"), STOPS.format(GATHERED), "stopper.stop"),
        (
            "score = evaluate(model)\nif score > 0.5:\n    break",
            "share = reduce_mean(evaluate(model))\nif share > 0.5:\n    break",
            "score > 0.5",
        ),
        (
            TURNS.format("DataLoader(Shard(rank))"),
            TURNS.format("DataLoader(Shard(0), sampler=DistributedSampler(Shard(0)))"),
            "how many turns DataLoader(Shard(rank)) has",
        ),
        (TURNS.format("lines"), TURNS.format("lines[: args.least]"), "how many turns lines has"),
        (
            TURNS.format("range(len(lines))"),
            "least = torch.tensor(len(lines))\ndist.all_reduce(least)\n" + TURNS.format("range(int(least))"),
            "how many turns range(len(lines)) has",
        ),
    ],
)
def test_what_comes_from_data_of_a_rank_may_part_it_from_the_others_and_is_a_conditional_warning(
    planted: str, correct: str, named: str, tmp_path: Path
) -> None:
    found = searched(DATA.format(epoch=textwrap.indent(planted, " " * 8)), tmp_path).findings
    assert {(each.rule, each.severity) for each in found} == {("collective-missing", "conditional")}
    assert {each.condition.says for each in found if each.condition is not None} == {named}
    assert all(each.message.startswith(f"If this may differ between ranks: {named} (line ") for each in found)
    assert rules(DATA.format(epoch=textwrap.indent(correct, " " * 8)), tmp_path) == set()


@pytest.mark.parametrize(
    ("second", "conditions"),
    [
        ("for x in lines:\n    held.get()\ndist.barrier()", []),
        ("for x in range(len(lines)):\n    held.get()\ndist.barrier()", []),
        (TURNS.format("lines"), ["how many turns lines has"]),
    ],
)
def test_a_rank_has_as_many_turns_of_its_own_data_wherever_it_loops_over_them(
    second: str, conditions: list[str], tmp_path: Path
) -> None:
    body = textwrap.indent(f"held = queue.Queue()\nfor x in lines:\n    held.put(x)\n{second}", " " * 8)
    found = searched(f"import queue\n{DATA.format(epoch=body)}", tmp_path).findings
    assert [each.condition.says for each in found if each.condition is not None] == conditions
    assert len(found) == len(conditions)


ALIKE = """
import torch.distributed as dist

def first(items):
    for each in items:
        if each is not None:
            return each

def share(config):
    items, best = config.load(), None
    if dist.get_rank() == 0:
        for each in items:
            dist.broadcast(each, 0)
    else:
        for each in items.copy():
            dist.broadcast(each, 0)
    {more}
"""
LATE = """for each in items:
        dist.broadcast(each, 0)
        if best is not None{}:
            break
        best = each"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("return first(items)", set[str]()),
        (LATE.format(""), set()),
        (LATE.format(" and dist.get_rank() == 0"), {"collective-missing"}),
    ],
)
def test_loops_over_the_same_have_as_many_turns_although_one_of_them_can_be_left(
    more: str, expected: set[str], tmp_path: Path
) -> None:
    assert rules(ALIKE.format(more=more), tmp_path) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if epoch % args.every == 0:\n    dist.barrier()", set()),
        ("if args.loss_weight > 0:\n    dist.barrier()", set()),
        ("loss = args.loss\nif loss:\n    dist.barrier()", set()),
        ("norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1)\nif torch.isfinite(norm):\n    dist.barrier()", set()),
        ("batch = next(iter(train_loader))\nif batch is None or batch['kind'] == 'a':\n    dist.barrier()", set()),
        ("files = [each for number, each in enumerate(lines) if number % 2 == rank]\n" + TURNS.format("files"), {"error"}),
        ("import time\nif time.perf_counter_ns() > 9:\n    break", {"error"}),
    ],
)
def test_settings_steps_and_norms_of_gradients_are_alike_and_clocks_are_not(
    body: str, expected: set[str], tmp_path: Path
) -> None:
    found = searched(DATA.format(epoch=textwrap.indent(body, " " * 8)), tmp_path).findings
    assert {each.severity for each in found} == expected

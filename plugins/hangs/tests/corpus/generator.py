"""Variants of hand-written programs: a correct one and one with a planted bug of each family, by seed.

A family is a text file. Its head names the rule that finds its bug, what runs it, and what it prints if nothing goes wrong.
`level: conditional`: the bug needs data that differ between ranks, so what finds it is a conditional warning.

| in a family | in a variant |
|---|---|
| `$name` | another name of the same meaning |
| `#bad`, `#good` at the end of a line | the line is only in the planted, or only in the correct program |
| `#decoy` | code that looks like trouble and is none, or nothing |
| `#far` | lines that do nothing here, or none |
| `#[` to `#]` | the lines between, perhaps within another block |
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass
from pathlib import Path

FAMILIES = Path(__file__).parent / "families"
SEEDS = range(9)
"""Of each three, one is correct."""

_NAMES = {
    "rank": ["rank", "my_rank", "global_rank"],
    "weights": ["weights", "parameters", "state"],
    "grad": ["grad", "gradient", "delta"],
    "epoch": ["epoch", "iteration", "turn"],
    "model": ["model", "network", "net"],
    "loader": ["loader", "train_loader", "val_loader"],
    "batch": ["batch", "images", "inputs"],
    "totals": ["totals", "metrics", "statistics"],
    "worker": ["worker", "thread_of_pool", "each"],
    "lock": ["lock", "guard", "mutex"],
    "cache_lock": ["cache_lock", "images_lock", "store_guard"],
    "stats_lock": ["stats_lock", "figures_lock", "hits_guard"],
    "queue": ["tasks", "batches", "pending"],
    "requests": ["requests", "inbox", "questions"],
    "answers": ["answers", "outbox", "results"],
    "item": ["item", "task", "job"],
    "number": ["number", "index", "place"],
    "count": ["count", "steps_done", "processed"],
    "total": ["total", "loss_sum", "seen"],
    "score": ["score", "accuracy", "result"],
    "ready": ["ready", "warmed_up", "finished"],
    "condition": ["condition", "changed", "available"],
    "pool": ["pool", "executor", "workers_pool"],
}
_DECOYS = {
    "ranks": [
        "if dist_rank() == 0:\n    print('rank 0 goes on')",
        "if dist_rank() > 0:\n    noted = 'another rank'\nelse:\n    noted = 'the first rank'",
        "for _ in range(dist_rank() + 1):\n    noted = _",
        "try:\n    noted = float('1.5')\nexcept ValueError:\n    noted = 0.0",
        "if dist_rank() == 0:\n    noted = [number * 2 for number in range(3)]\n    if noted:\n        noted.clear()",
    ],
    "threads": [
        "with DECOY_LOCK:\n    noted = 1",
        "DECOY_QUEUE.put(1)\nnoted = DECOY_QUEUE.get()",
        "try:\n    noted = int('3')\nexcept ValueError:\n    noted = 0",
        "if DECOY_EVENT.is_set():\n    noted = 'set'",
        "DECOY_LOCK.acquire()\ntry:\n    noted = 2\nfinally:\n    DECOY_LOCK.release()",
    ],
}
_HEADS = {
    "ranks": "def dist_rank():\n    import os\n\n    return int(os.environ['RANK'])\n",
    "threads": (
        "import queue as decoy_queue\nimport threading as decoy_threading\n\nDECOY_LOCK = decoy_threading.Lock()\n"
        "DECOY_QUEUE = decoy_queue.Queue()\nDECOY_EVENT = decoy_threading.Event()\n"
    ),
}
_FILLERS = [
    "started = 0.0",
    "words = ['a', 'b']",
    "width, height = 4, 3",
    "area = 4 * 3",
    "label = 'x'.upper()",
    "scale = 1 / 255",
]
_BLOCKS = ["if open_nothing is not None:", "if 'convtwins':", "with open_nothing():", "try:"]
_OPEN_NOTHING = "import contextlib\n\n\ndef open_nothing():\n    return contextlib.nullcontext()\n"


@dataclass(frozen=True)
class Program:
    family: str
    seed: int
    planted: bool
    rules: tuple[str, ...]
    runs: str
    """ranks or threads."""
    forced: str
    """How the harness makes the bug show."""
    expects: str
    """What it prints if nothing goes wrong. Empty: that it ends is enough."""
    text: str
    conditional: bool = False
    """Whether the bug needs data that differ between ranks."""

    @property
    def name(self) -> str:
        return f"{self.family}-{self.seed}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def families() -> list[str]:
    return sorted(path.stem for path in FAMILIES.glob("*.txt"))


def programs() -> list[Program]:
    """All variants of all families."""
    return [made(family, seed) for family in families() for seed in SEEDS]


def made(family: str, seed: int) -> Program:
    """One variant. Every third is correct."""
    lines = (FAMILIES / f"{family}.txt").read_text().splitlines()
    head: dict[str, str] = {}
    while match := re.match(r"(rule|level|runs|forced|expects): (.*)", lines[0]):
        head[match[1]] = match[2]
        lines.pop(0)
    planted = seed % 3 != 0
    draw = random.Random(f"{family} {seed}")
    lines = _chosen(lines, planted)
    lines = _nested(lines, draw)
    lines = _decorated(lines, head["runs"], draw)
    names = {name: draw.choice(words) for name, words in _NAMES.items()}
    text = re.sub(r"\$(\w+)", lambda match: names[match[1]], "\n".join(lines) + "\n")
    text = _HEADS[head["runs"]] + "\n\n" + _OPEN_NOTHING + "\n\n" + text
    expected = re.sub(r"\$(\w+)", lambda match: names[match[1]], head.get("expects", ""))
    rules = tuple(head["rule"].split(", "))
    return Program(family, seed, planted, rules, head["runs"], head.get("forced", ""), expected, text, "level" in head)


def _chosen(lines: list[str], planted: bool) -> list[str]:
    mine, other = ("#bad", "#good") if planted else ("#good", "#bad")
    return [line.removesuffix(mine).rstrip() for line in lines if not line.endswith(other)]


def _nested(lines: list[str], draw: random.Random) -> list[str]:
    made: list[str] = []
    inside: list[tuple[str, int]] = []
    for line in lines:
        space = line[: len(line) - len(line.lstrip())]
        if line.strip() == "#[":
            block = draw.choice(["", *_BLOCKS])
            inside.append((block, len(made)))
            if block:
                made.append(space + block)
        elif line.strip() == "#]":
            block, _ = inside.pop()
            if block == "try:":
                made += [f"{space}finally:", f"{space}    noted_at_last = True"]
        else:
            made.append("    " * sum(bool(block) for block, _ in inside) + line if line.strip() else line)
    return made


def _decorated(lines: list[str], runs: str, draw: random.Random) -> list[str]:
    made: list[str] = []
    for place, line in enumerate(lines):
        after = next((each for each in lines[place + 1 :] if each.strip()), "")
        space = min(line[: len(line) - len(line.lstrip())], after[: len(after) - len(after.lstrip())], key=len)
        if line.strip() == "#decoy":
            if draw.random() < 0.7:
                made += [space + part for part in draw.choice(_DECOYS[runs]).splitlines()]
        elif line.strip() == "#far":
            made += [space + filler for filler in draw.sample(_FILLERS, draw.randrange(len(_FILLERS)))]
        else:
            made.append(line)
    return made

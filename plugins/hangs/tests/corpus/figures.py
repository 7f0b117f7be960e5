"""The figures of the README: `python -m plugins.hangs.tests.corpus.figures`.

With and without the pruning of what nobody else notices, on the same programs and budget.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from convtwins_hangs.concurrency import sources
from convtwins_hangs.concurrency.meanings import KnownNames
from convtwins_hangs.concurrency.program import Program as Checked
from convtwins_hangs.concurrency.search import SearchResult, search
from plugins.hangs.tests.corpus import generator
from plugins.hangs.tests.corpus.generator import Program

NODES = 20_000


def main() -> None:
    programs = generator.programs()
    found: dict[bool, dict[str, SearchResult]] = {True: {}, False: {}}
    with tempfile.TemporaryDirectory() as folder:
        for prune in (True, False):
            started = time.process_time()
            for each in programs:
                path = Path(folder) / f"{each.name}.py"
                path.write_text(each.text)
                checked = Checked(sources.read(str(path)), KnownNames())
                found[prune][each.name] = search(checked, nodes=NODES, seconds=60, prune=prune)
            print(f"{'pruned' if prune else 'not pruned'}: {time.process_time() - started:.0f} CPU seconds")
    _by_rule(programs, found[True])
    for prune, word in ((True, "pruned"), (False, "not pruned")):
        planted = [each for each in programs if each.planted]
        hits = [each for each in planted if {one.rule for one in found[prune][each.name].findings} == set(each.rules)]
        false = [each for each in programs if not each.planted and found[prune][each.name].findings]
        first = [found[prune][each.name].nodes_to_first_finding or NODES for each in planted]
        nodes = [found[prune][each.name].nodes for each in programs]
        whole = sum(not found[prune][each.name].unexplored for each in programs)
        print(
            f"| {word} | {len(hits)} of {len(planted)} | {len(false)} of {len(programs) - len(planted)} "
            f"| {statistics.median(first):,.0f} "
            f"| {sorted(first)[int(0.95 * len(first))]:,} | {statistics.median(nodes):,.0f} | {whole} |"
        )


def _by_rule(programs: list[Program], found: dict[str, SearchResult]) -> None:
    rows: dict[str, list[Program]] = defaultdict(list)
    for each in programs:
        rows[", ".join(each.rules)].append(each)
    for rule, of_rule in sorted(rows.items()):
        planted = [each for each in of_rule if each.planted]
        hits = sum({one.rule for one in found[each.name].findings} == set(each.rules) for each in planted)
        false = sum(bool(found[each.name].findings) for each in of_rule if not each.planted)
        families = len({each.family for each in of_rule})
        print(f"| `{rule}` | {families} | {hits} of {len(planted)} | {false} of {len(of_rule) - len(planted)} |")


if __name__ == "__main__":
    main()

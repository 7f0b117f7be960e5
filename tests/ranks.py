from collections.abc import Sequence

from common.processes.process_spec import ProcessSpec
from common.processes.supervisor import Failure, Watch, run_members


def run_ranks(command: Sequence[str], environments: Sequence[dict[str, str]], watch: Watch | None = None) -> Failure | None:
    """Run one command in several processes, each with its own additions to the environment; see `run_members`."""
    return run_members([ProcessSpec(f"rank {rank}", command, each) for rank, each in enumerate(environments)], watch or Watch())

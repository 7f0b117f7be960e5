"""The parallel modes: a record of traits for each word of `--modes`, in one registry.

Code outside this folder asks for a trait, never for a mode's name. A new mode is a new record, and the code that only it needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

_EACH = "a core or GPU for each"


@dataclass(frozen=True, kw_only=True)
class Mode:
    """Traits of a parallel mode, or of a variant of one: how replicas share the work of a run."""

    name: str
    """Value of `Spec.mode`. Variants of a mode share it."""
    variant: str
    """Word of `--modes`, and key in the registry."""
    chosen_by: tuple[str, str] | None = None
    """(dotted field of a spec, its value) that selects this variant. None: the mode has no other one."""
    resets: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields that the word of `--modes` also sets, because they are for other variants."""
    divides: frozenset[Literal["batch", "layers", "channels", "state"]]
    """Shares of each replica: of the batch, of the model's layers, of each layer's channels, or of the stored weights and
    optimizer state. Empty: there is one replica."""
    processes: Literal["one", "each", "framework"]
    """Processes of a run: one, one for each replica, or as the framework does it: the replicas may be devices of one graph."""
    needs: str
    """Hardware that the mode runs on, for people."""
    exchange: Literal["ring", "server"] | None = None
    """Exchange of gradients between processes that can be timed alone: around a ring, or with a parameter server."""
    not_serial_because: str | None = None
    """Reason why a run has other mathematics than serial on purpose. None: it claims the same."""
    has_late_gradients: bool = False
    """Whether gradients are applied to weights that have moved on since."""
    trains_apart: bool = False
    """Whether replicas update weights of their own, and average them now and then (`Spec.averaging`)."""
    cuts_batches: bool = False
    """Whether a batch passes through the model in micro-batches (`Spec.pipeline`)."""
    has_own_rule: bool = False
    """Whether its updates follow the suite's own rule, so that a framework's native optimizer is refused."""
    compresses: bool = False
    """Whether replicas can send compressed gradients. Serial sends none, but may be asked for together with others."""
    resumes: bool = False
    """Whether rank 0 holds or gathers everything that a resumed run needs."""
    is_elastic: bool = False
    """Whether a run of several processes can resume with fewer: its checkpoint does not depend on the number of replicas."""

    @property
    def is_parallel(self) -> bool:
        """Whether there are several replicas."""
        return bool(self.divides)

    @property
    def divides_batch(self) -> bool:
        """Whether replicas work on different examples."""
        return "batch" in self.divides

    @property
    def divides_model(self) -> bool:
        """Whether replicas divide a model, or the arrays of each layer. Then they must know how its layers are connected."""
        return bool(self.divides - {"batch"})

    @property
    def is_nested(self) -> bool:
        """Whether there are copies of a model that is itself divided (`Spec.hybrid`)."""
        return self.divides_batch and bool(self.divides & {"layers", "channels"})

    @property
    def runs_across_hosts(self) -> bool:
        """Whether replicas may be on several machines: each is a process in every framework."""
        return self.processes == "each"

    @property
    def has_server(self) -> bool:
        """Whether a parameter server holds the weights and updates them."""
        return self.exchange == "server"

    @property
    def can_own_images(self) -> bool:
        """Whether each replica can train on images of its own: in every framework it is a process with a whole model."""
        return self.runs_across_hosts or not self.is_parallel

    @property
    def no_global_statistics_because(self) -> str | None:
        """Reason why BatchNorm cannot use the statistics of the global batch, in any framework. None: it can."""
        if self.cuts_batches:
            return f"the micro-batches of a {self.variant} have BatchNorm statistics of their own"
        if self.has_late_gradients:
            return "workers that do not wait for each other have BatchNorm statistics of their own"
        return None

    @property
    def updates_each_micro_batch(self) -> bool:
        """Whether weights change within a batch, before the loss of the batch is known."""
        return self.cuts_batches and self.has_late_gradients


class ModeRegistry(Mapping[str, Mode]):
    """All modes by their words in `--modes`, in the order of the tables."""

    def __init__(self, *modes: Mode) -> None:
        self._modes = {mode.variant: mode for mode in modes}

    def __getitem__(self, variant: str) -> Mode:
        return self._modes[variant]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modes)

    def __len__(self) -> int:
        return len(self._modes)

    def names(self, condition: Callable[[Mode], bool] = lambda mode: True) -> tuple[str, ...]:
        """Return the values of `Spec.mode`, of the modes that meet a condition."""
        return tuple(dict.fromkeys(mode.name for mode in self._modes.values() if condition(mode)))

    def variants(self, condition: Callable[[Mode], bool]) -> tuple[str, ...]:
        """Return the words of `--modes`, of the modes that meet a condition."""
        return tuple(mode.variant for mode in self._modes.values() if condition(mode))

    def find(self, name: str, read_field: Callable[[str], Any]) -> Mode:
        """Return the variant of a mode that the fields of a spec select.

        Args:
            name: the spec's mode.
            read_field: returns the value of a dotted field of the spec.
        """
        for mode in self._modes.values():
            if mode.name == name and (mode.chosen_by is None or read_field(mode.chosen_by[0]) == mode.chosen_by[1]):
                return mode
        raise KeyError(f"{name} has no variant for these fields. Add it to MODES in common/spec/modes.py.")

    @contextlib.contextmanager
    def extended(self, mode: Mode) -> Generator[Mode]:
        """Add a mode for the duration of a block."""
        if mode.variant in self._modes:
            raise ValueError(f"The name of a mode must be new. Received: {mode.variant!r}. Use another.")
        self._modes[mode.variant] = mode
        try:
            yield mode
        finally:
            del self._modes[mode.variant]


_PIPELINE = Mode(
    name="pipeline",
    variant="pipeline",
    chosen_by=("pipeline.schedule", "gpipe"),
    divides=frozenset({"layers"}),
    processes="framework",
    needs=f"{_EACH} stage",
    cuts_batches=True,
)
MODES = ModeRegistry(
    Mode(
        name="serial",
        variant="serial",
        divides=frozenset(),
        processes="one",
        needs="one device",
        compresses=True,
        resumes=True,
    ),
    Mode(
        name="data_parallel",
        variant="data_parallel",
        divides=frozenset({"batch"}),
        processes="one",
        needs=f"{_EACH} replica",
        compresses=True,
        resumes=True,
    ),
    Mode(
        name="multi_process",
        variant="multi_process",
        divides=frozenset({"batch"}),
        processes="each",
        needs=f"{_EACH} rank",
        exchange="ring",
        compresses=True,
        resumes=True,
        is_elastic=True,
    ),
    Mode(
        name="sharded_data_parallel",
        variant="sharded_data_parallel",
        divides=frozenset({"batch", "state"}),
        processes="framework",
        needs=f"{_EACH} replica",
        has_own_rule=True,
        resumes=True,
        is_elastic=True,
    ),
    Mode(
        name="parameter_server",
        variant="parameter_server",
        chosen_by=("parameter_server.updates", "synchronous"),
        resets={"parameter_server.staleness": None},
        divides=frozenset({"batch"}),
        processes="each",
        needs=f"{_EACH} worker",
        exchange="server",
        has_own_rule=True,
        compresses=True,
    ),
    Mode(
        name="model_parallel",
        variant="model_parallel",
        divides=frozenset({"layers"}),
        processes="framework",
        needs=f"{_EACH} part",
    ),
    Mode(
        name="tensor_parallel",
        variant="tensor_parallel",
        divides=frozenset({"channels"}),
        processes="framework",
        needs=f"{_EACH} slice",
    ),
    _PIPELINE,
    Mode(
        name="model_averaging",
        variant="model_averaging",
        divides=frozenset({"batch"}),
        processes="each",
        needs=f"{_EACH} replica",
        not_serial_because="replicas train apart, and their weights are averaged now and then",
        trains_apart=True,
    ),
    Mode(
        name="parameter_server",
        variant="parameter_server_async",
        chosen_by=("parameter_server.updates", "asynchronous"),
        divides=frozenset({"batch"}),
        processes="each",
        needs=f"{_EACH} worker",
        exchange="server",
        not_serial_because="gradients are applied to weights that have moved on since",
        has_late_gradients=True,
        has_own_rule=True,
    ),
    replace(_PIPELINE, variant="pipeline_1f1b", chosen_by=("pipeline.schedule", "1f1b")),
    replace(
        _PIPELINE,
        variant="pipeline_async",
        chosen_by=("pipeline.schedule", "asynchronous"),
        not_serial_because=("every micro-batch makes an update of its own, with gradients of weights that have moved on since"),
        has_late_gradients=True,
        has_own_rule=True,
    ),
    Mode(
        name="hybrid",
        variant="hybrid_tensor",
        chosen_by=("hybrid.inner", "tensor_parallel"),
        divides=frozenset({"batch", "channels"}),
        processes="framework",
        needs="4 cores or GPUs at least",
    ),
    Mode(
        name="hybrid",
        variant="hybrid_pipeline",
        chosen_by=("hybrid.inner", "pipeline"),
        divides=frozenset({"batch", "layers"}),
        processes="framework",
        needs="4 cores or GPUs at least",
        cuts_batches=True,
    ),
)
"""All modes. The order is that of `--modes all`."""

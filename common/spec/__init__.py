"""The spec of a run: one frozen, validated description that every part of the suite reads.

A spec comes from YAML, JSON or the command line, and travels to the twins as JSON. All that can be judged without a framework
is judged here. A twin's `describe` judges devices, possible modes and the framework's own switches.
"""

# pyright: reportUnusedImport=false
from common.spec.errors import SpecError
from common.spec.groups import Communication, Dask, Data, Optimizer
from common.spec.modes import MODES, Mode
from common.spec.names import INPUTS, LEVELS, MODELS, SCHEDULERS, Device, Precision
from common.spec.parsing import overlay, parse_assignments, read_values, with_variant
from common.spec.schema import EFFECTS, Spec, build, check_fields, from_json, micro_batches
from common.spec.switches import (
    check_against,
    conditions,
    description_for_device,
    gpus,
    incompatibility,
    reduced_precision_switches,
    refuse_per_process,
    resolve_switches,
)

"""Devices, threads and modes of Keras on this machine: those of the framework's own twin."""

from __future__ import annotations

from typing import Any

import keras

from common.machine import machine
from keras_twin.backends import backend

kind = backend.device.kind
synchronize = backend.device.synchronize
peak_memory_mib = backend.device.peak_memory_mib
configure = backend.device.configure
rates = backend.device.rates


def describe() -> dict[str, Any]:
    """Describe devices, available modes, switches and versions, JSON-ready, for `common.spec.check_against`."""
    described = backend.device.describe()
    inherited = ("libraries", "inputs", "deterministic", "inputs_not_available")
    names = backend.device.gpus()
    return {
        "framework": f"keras-{keras.backend.backend()}",
        "versions": versions(),
        "supported": backend.SUPPORTED,
        **{name: described[name] for name in inherited if name in described},
        **_on(names),
        **({"on_cpu": _on([])} if names else {}),
    }


def _on(names: list[str]) -> dict[str, Any]:
    """Return the entries that depend on the GPUs, which are given by name. Without names they describe the CPU."""
    device_kind = kind() if names else "cpu"
    return {
        "devices": [{"name": name, "kind": device_kind} for name in names] or [{"name": "cpu", "kind": "cpu"}],
        "modes": backend.modes(len(names)),
        "options": backend.switches.options(device_kind),
    }


def versions() -> dict[str, str]:
    """Return the installed versions of the packages."""
    return machine.versions(*backend.SUPPORTED)

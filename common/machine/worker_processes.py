"""Whether this system lets a process have worker processes of `multiprocessing`, which talk over semaphores and sockets."""

from __future__ import annotations

import multiprocessing
import socket
import tempfile


def why_no_worker_processes() -> str | None:
    """Return a sentence on what worker processes lack here. None: they can be started.

    Without a semaphore they end with a traceback. A process without a socket waits for a message that nobody can send.
    """
    try:
        multiprocessing.get_context("fork").Lock()  # its name is gone at once
    except OSError as error:
        return (
            f"Input workers need semaphores in /dev/shm, which cannot be written. Received: {error}. "
            "Mount it (Docker: --shm-size 1g), or use input=inline"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(f"{tempfile.gettempdir()}/pymp-12345678/listener-12345678")
        except FileNotFoundError:
            return None  # its length is right: only the folder of the socket is missing
        except OSError as error:
            return (
                f"The temporary folder cannot have the sockets of input workers: {error}. Received: {tempfile.gettempdir()}. "
                "Set TMPDIR to a folder with a short path"
            )
    return None


def check_worker_processes() -> None:
    """Refuse a system that cannot have worker processes.

    Raises:
        OSError: they lack something. The message is a sentence.
    """
    if (reason := why_no_worker_processes()) is not None:
        raise OSError(reason)

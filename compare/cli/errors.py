"""Errors that a user can fix. `exits.exit_on_error` turns each into a line on stderr and an exit code."""

from __future__ import annotations

from common.errors import UserError


class LaunchError(UserError, RuntimeError):
    """A twin cannot be started, or its answer is malformed."""

    exit_code = 1


class UnfitError(LaunchError):
    """An interpreter is missing or broken, or has no version of Python or of a framework that the suite supports."""

    exit_code = 2


class NoAnswerError(LaunchError):
    """An interpreter or a twin has not answered in time, or for lack of memory. It may answer on an idle machine."""


class FolderError(UserError, ValueError):
    """A results folder cannot be used. The message says why and what to do."""

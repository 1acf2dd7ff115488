"""The ledger on disk: a second record of the steps, beside the model's own."""

import json
import os
import tempfile

from keras_gdp.errors import LedgerError

__all__ = ["read_ledger", "write_ledger"]

_VERSION = 1


def read_ledger(path):
    """Returns the ledger at `path` as a dict, or `None` if there is no file.

    Raises:
        LedgerError: If the file cannot be read as a ledger.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}, expected {_VERSION}")
        content["private_steps"] = int(content["private_steps"])
        return content
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"The privacy ledger {os.fspath(path)!r} cannot be read: {error}. It is "
            "the record of what was spent; restore it from a copy, or give another "
            "path to start a new record beside the one inside the model."
        ) from error


def write_ledger(path, private_steps, events, delta):
    """Writes the ledger at once or not at all.

    Args:
        path: File to replace.
        private_steps: Number of private steps so far.
        events: List of `(event, count)`.
        delta: Delta at which the budget is kept.

    Raises:
        LedgerError: If the file cannot be written.
    """
    content = {
        "version": _VERSION,
        "private_steps": private_steps,
        "delta": delta,
        "events": [
            {"event": event.to_dict(), "count": count} for event, count in events
        ],
    }
    try:
        _replace(path, content)
    except OSError as error:
        raise LedgerError(
            f"The privacy ledger {os.fspath(path)!r} cannot be written: {error}. Pass "
            "the path of a file in a folder that can be written to as `ledger=`."
        ) from error


def _replace(path, content):
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise

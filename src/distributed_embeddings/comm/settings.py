"""Numbers taken from the environment, read in one place."""

from __future__ import annotations

import os


def seconds_from_env(name: str, default: float) -> float:
    """Return the seconds in environment variable `name`, or `default` when it is unset or empty.

    Raises ValueError naming the variable and its value.
    """
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ValueError(
            f"Environment variable `{name}` must be a positive number of seconds. Received: {text!r}."
        )
    return seconds

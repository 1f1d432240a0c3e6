"""What a command refuses before it starts anything."""

from __future__ import annotations


def require_positive(**options: int | None) -> None:
    """Raise ValueError naming the option that is below 1; None is "not given"."""
    for name, value in options.items():
        if value is not None and value < 1:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"`{option}` must be at least 1, or left out. Received: {option} {value}")

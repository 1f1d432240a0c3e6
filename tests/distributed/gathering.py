"""Texts of all ranks on every rank."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def gather_text(communicator: Any, text: str) -> list[str]:
    """Every rank's text, by rank. Collective."""
    raw, sizes = communicator.all_gather(tf.io.decode_raw(tf.constant(text), tf.uint8), phase="results")
    data, start, texts = raw.numpy().tobytes(), 0, []
    for n in sizes.numpy().tolist():
        texts.append(data[start : start + n].decode(errors="replace"))
        start += n
    return texts

"""One answer on all ranks: what one rank found wrong with its inputs is raised on every rank, with the same text."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import tensorflow as tf

from distributed_embeddings.comm import Communicator


def signature(*parts: object) -> int:
    """A number that ranks compare: equal parts, equal number."""
    return crc32(repr(parts).encode())


def raise_together(comm: Communicator, failed: tf.Tensor, describe: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Raise the texts of all ranks on all ranks when `failed`.

    failed: bool scalar, equal on all ranks, so that all take the same branch. describe: this rank's text, "" for none.
    Raises InvalidArgumentError.
    """

    def fail() -> tf.Tensor:
        text = tf.io.decode_raw(describe(), tf.uint8)
        if comm.size > 1:
            text, _ = comm.all_gather(text, phase="invalid inputs")
        # There is no op that turns bytes into a string; 256 one-byte strings do.
        alphabet = tf.constant([bytes([i]) for i in range(256)])
        joined = tf.strings.reduce_join(tf.gather(alphabet, tf.cast(text, tf.int32)))
        tf.debugging.Assert(False, [joined], summarize=1)
        return tf.constant(False)

    return tf.cond(failed, fail, lambda: tf.constant(True))


def require_equal_kinds(comm: Communicator, signatures: tf.Tensor, kinds: str) -> tf.Tensor:
    """Fail on every rank when the ranks' inputs differ in kind, with every rank's kinds.

    signatures: int64 [N], of the kinds. kinds: this rank's, as a text.
    """
    rule = "every rank must give each feature in the same kind (hotness, dense or ragged, weighted or not). "
    text = f"{rule if comm.rank == 0 else ''}Received on rank {comm.rank}: {kinds}. "
    return raise_together(comm, tf.reduce_any(signatures != signatures[0]), lambda: tf.constant(text))


def require_equal_text(comm: Communicator, text: str, what: str) -> None:
    """Compare a short text over the ranks, eagerly. Raises ValueError on every rank, naming the first rank that
    differs."""
    mine = tf.io.decode_raw(tf.constant(text), tf.uint8)
    gathered, sizes = comm.all_gather(mine, phase=f"compare {what}")
    data, start, texts = gathered.numpy().tobytes(), 0, []
    for size in sizes.numpy().tolist():
        texts.append(data[start : start + size].decode())
        start += size
    for rank, other in enumerate(texts):
        if other != texts[0]:
            raise ValueError(
                f"every rank must have the same {what}. Received: rank 0 {texts[0]!r}, rank {rank} {other!r}. "
                "Start every worker with the same script, arguments and library version."
            )

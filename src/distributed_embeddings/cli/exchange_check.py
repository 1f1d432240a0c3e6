"""What `demb doctor` starts on two workers: an exchange inside `tf.function`, checked by value."""

from __future__ import annotations

import tensorflow as tf

from distributed_embeddings import comm


def main() -> None:
    """Raises RuntimeError when a value is not what it must be."""
    communicator = comm.init()
    rank, size = communicator.rank, communicator.size
    if size != 2:
        raise RuntimeError(f"two workers were started, but this job has {size}")

    @tf.function
    def exchange() -> tuple[tf.Tensor, tf.Tensor]:
        # Rank r sends r + 1 rows to rank 0 and none to rank 1: uneven and empty parts.
        values = tf.fill([rank + 1, 4], float(rank))
        received, _ = communicator.all_to_all(values, tf.constant([rank + 1, 0], tf.int64), phase="doctor")
        return received, communicator.all_reduce(tf.constant([float(rank + 1)]), "sum", phase="doctor sum")

    received, total = exchange()
    rows = [float(x) for x in received.numpy()[:, 0]]
    expected = [0.0, 1.0, 1.0] if rank == 0 else []
    if rows != expected or total.numpy().tolist() != [3.0]:
        raise RuntimeError(
            f"expected rows {expected} and sum 3. Received: {rows} and {total.numpy().tolist()}"
        )
    comm.shutdown()


if __name__ == "__main__":
    main()

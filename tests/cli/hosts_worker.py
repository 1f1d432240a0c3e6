"""Tells its place, exchanges 1 MB with every other worker, and checks what it got: argv[1], one file a rank."""

from __future__ import annotations

import json
import os
import socket
import sys

import numpy as np
import tensorflow as tf

from distributed_embeddings import comm

ROWS = 250_000


def main() -> None:
    communicator = comm.init()
    rank, size = communicator.rank, communicator.size
    values = tf.repeat(tf.range(size, dtype=tf.float32) + 100.0 * rank, ROWS)
    received, counts = communicator.all_to_all(values, tf.fill([size], ROWS), phase="test")
    right = np.array_equal(received.numpy(), np.repeat(np.arange(size) * 100.0 + rank, ROWS))
    place = {
        "rank": rank,
        "local": [communicator.local_rank, communicator.local_size],
        "cores": sorted(os.sched_getaffinity(0)),
        "host": socket.gethostname(),
        "right": right and counts.numpy().tolist() == [ROWS] * size,
    }
    with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
        json.dump(place, file)


if __name__ == "__main__":
    main()

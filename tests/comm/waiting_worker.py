"""Rank 1 comes two seconds late; rank 0 prints the part of a core it used while it waited."""

from __future__ import annotations

import time

import tensorflow as tf

from distributed_embeddings import comm

communicator = comm.init()
step = tf.function(lambda v: communicator.all_reduce(v, phase="late"))
step(tf.ones([1000]))
communicator.barrier(phase="start")
if communicator.rank == 1:
    time.sleep(2)
wall, used = time.monotonic(), time.process_time()
step(tf.ones([1000]))
used, wall = time.process_time() - used, time.monotonic() - wall
if communicator.rank == 0:
    print(f"used {used / wall:.4f} of a core in {wall:.2f} s")

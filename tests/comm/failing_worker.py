"""A worker that goes wrong in the way its argument says; the other ranks do as they should."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import tensorflow as tf

from distributed_embeddings import comm


def main(way: str) -> None:
    communicator = comm.init()
    os.write(1, f"pid {os.getpid()}\n".encode())  # one write: lines of two workers must not mix
    wrong = communicator.rank == communicator.size - 1

    @tf.function
    def step(values: tf.Tensor) -> tf.Tensor:
        return communicator.all_reduce(values, phase="dense gradients")

    step(tf.ones([3]))
    if wrong:
        go_wrong(way, communicator)
    elif way == "exit_alone":
        time.sleep(100)
    for _ in range(1000):
        step(tf.ones([3]))
        time.sleep(0.05)


def go_wrong(way: str, communicator: comm.Communicator) -> None:
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "raise":
        raise ValueError("feature C3 has a bad id")
    elif way == "raise_in_thread":
        threading.Thread(target=go_wrong, args=("raise", communicator)).start()
        time.sleep(100)
    elif way.startswith("exit"):
        try:
            sys.exit(4)
        except SystemExit as caught:  # this one ends nothing
            assert caught.code == 4
        sys.exit("no more disk" if way == "exit_with_text" else 3)
    elif way == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(100)
    elif way == "leave":
        comm.shutdown()
        time.sleep(100)
    elif way == "return":
        sys.exit(0)
    elif way == "other_phase":
        communicator.all_to_all(tf.zeros([communicator.size]), [1] * communicator.size, phase="ids")
    elif way == "late":
        time.sleep(100)


if __name__ == "__main__":
    main(sys.argv[1])

"""One worker of `fit` on uneven numbers of batches: `fit_worker.py OUT`. Each rank writes OUT.<rank> as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from fit_model import BATCHES, bits, data, fit, learnt, make_model

import distributed_embeddings.dist_model_parallel as dmp


def main() -> None:
    communicator = dmp.init()
    rank = communicator.rank
    found = {}
    for staleness in (0, "exact", 1):
        model = make_model()
        dmp.pipeline(model, staleness)
        history = fit(model, data(BATCHES - rank, rank), epochs=2)
        after = learnt(model)
        found[str(staleness)] = {
            "history": history,
            "learnt": [b.hex() for b in bits(after)],
            "steps": int(model.optimizer.iterations),
        }
    Path(f"{sys.argv[1]}.{rank}").write_text(json.dumps(found))
    dmp.shutdown()


if __name__ == "__main__":
    main()

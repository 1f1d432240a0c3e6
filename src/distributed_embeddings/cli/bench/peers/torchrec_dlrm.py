"""TorchRec's DLRM on Gloo processes as a competitor of `demb bench train`. Run by the peers' Python.

Requests as `made_clicks` says. Rank 0 is this process; the other ranks are started by it and do what it is asked.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import made_clicks
import torch
import torchrec
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from protocol import Answer, memory, serve
from torch import distributed, multiprocessing
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ShardingType
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

_LEARNING_RATE, _EPSILON = 0.01, 1e-7
_RULES = {"adagrad": EmbOptimType.EXACT_ADAGRAD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}

Step = Any
"""step(): one whole training step on the next prepared batch; seconds as this rank sees them."""


def start(case: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
    """Start the other ranks and build the model on all of them."""
    directory = tempfile.mkdtemp(prefix="demb-gloo-")
    store = os.path.join(directory, "store")
    context = multiprocessing.get_context("spawn")
    others: list[Connection] = []
    for rank in range(1, case["workers"]):
        mine, its = context.Pipe()
        context.Process(target=_follow, args=(rank, case, store, its), daemon=True).start()
        its.close()
        others.append(mine)
    step, said = make_step(case, 0, store)
    os.unlink(store)
    os.rmdir(directory)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "memory" in request:
            return memory(reset=request["memory"] == "reset")
        if request["run"] != "step":
            raise ValueError(f"`run` must be 'step'. Received: run={request['run']!r}")
        count = int(request.get("count", 1))
        for other in others:
            other.send(count)
        return {"seconds": [step() for _ in range(count)]}

    return said, answer


def _follow(rank: int, case: dict[str, Any], store: str, requests: Connection) -> None:
    step, _ = make_step(case, rank, store)
    while True:
        try:
            count = requests.recv()
        except EOFError:  # rank 0 has ended
            return
        for _ in range(count):
            step()


def make_step(case: Mapping[str, Any], rank: int, store: str) -> tuple[Step, dict[str, Any]]:
    """(one training step, what rank 0 says of itself). Collective."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(case["threads"])
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=case["workers"]
    )
    torch.manual_seed(0)
    model, plan = make_model(case)
    dense = dict(in_backward_optimizer_filter(model.named_parameters()))
    optimizer = KeyedOptimizerWrapper(
        dense,
        lambda p: torch.optim.Adagrad(
            p, lr=_LEARNING_RATE, initial_accumulator_value=0.1, eps=_EPSILON, fused=True
        ),
    )
    made = made_clicks.worker_batches(case, rank)
    pool = [torch_batch(batch) for batch in made]
    state = {"next": 0}

    def step() -> float:
        batch = pool[state["next"] % len(pool)]
        state["next"] += 1
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss, _ = model(batch)
        loss.backward()  # tables are updated in here
        optimizer.step()
        loss.item()
        return time.perf_counter() - begin

    distributed.barrier()
    said = {
        "torch": torch.__version__, "torchrec": torchrec.__version__, "plan": str(plan).splitlines(),
        "checksum": made_clicks.checksum(made),
    }  # fmt: skip
    return step, said


def make_model(case: Mapping[str, Any]) -> tuple[torch.nn.Module, Any]:
    """(DLRM with its loss, tables table-wise over the ranks by TorchRec's planner, the rest in DDP; the plan)."""
    names = _names(case["tables"])
    tables = torchrec.EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            torchrec.EmbeddingBagConfig(
                name=f"t_{name}", num_embeddings=case["rows"], embedding_dim=case["dim"], feature_names=[name]
            )
            for name in names
        ],
    )
    model = DLRMTrain(
        DLRM(
            tables,
            dense_in_features=case["numbers"],
            dense_arch_layer_sizes=[*case["bottom"], case["dim"]],
            over_arch_layer_sizes=[*case["top"], 1],
            dense_device=torch.device("cpu"),
        )
    )
    # No bounds check: it is a pass over the ids that FBGEMM makes by default.
    fused = {
        "optimizer": _RULES[case["rule"]], "learning_rate": _LEARNING_RATE, "eps": _EPSILON,
        "bounds_check_mode": BoundsCheckMode.NONE,
    }  # fmt: skip
    sharders = [EmbeddingBagCollectionSharder(fused_params=fused)]
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=case["workers"], local_world_size=case["workers"], compute_device="cpu"),
        batch_size=case["batch"],
        constraints={
            f"t_{name}": ParameterConstraints(sharding_types=[ShardingType.TABLE_WISE.value])
            for name in names
        },
    )
    plan = planner.collective_plan(model, sharders, distributed.group.WORLD)
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    return parallel, plan


def torch_batch(batch: made_clicks.Batch) -> Any:
    """A prepared batch as TorchRec's datasets give it."""
    from torchrec.datasets.utils import Batch

    numbers, ids, labels = batch
    count = len(ids)
    features = torchrec.KeyedJaggedTensor.from_lengths_sync(
        keys=_names(count),
        values=torch.cat([torch.from_numpy(x) for x in ids]),
        lengths=torch.ones(count * len(labels), dtype=torch.int32),
    )
    return Batch(torch.from_numpy(numbers), features, torch.from_numpy(labels).int())


def _names(tables: int) -> list[str]:
    return [f"C{i:02d}" for i in range(tables)]


if __name__ == "__main__":
    serve(start)

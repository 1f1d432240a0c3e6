"""One worker of the sharded == unsharded suite: `sharded_worker.py SET OUT`. Rank 0 writes {case: error or ""} as
JSON."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import keras
import numpy as np
import tensorflow as tf
from cases import COMBINERS, SETS, SHARDINGS, TABLE_SHAPES, Case, explicit_plan, feature_kinds
from gathering import gather_text
from unsharded import Model, update_rows

import distributed_embeddings.dist_model_parallel as dmp
from distributed_embeddings.layers import slots as slot_layout
from distributed_embeddings.optimizers import RowwiseAdagrad

STEPS, LR = 3, 0.05


def keras_optimizer(rule: str):
    makers = {
        "sgd": keras.optimizers.SGD,
        "momentum": lambda lr: keras.optimizers.SGD(lr, momentum=0.9),
        "adagrad": keras.optimizers.Adagrad,
        "rowwise_adagrad": RowwiseAdagrad,
        "adam": keras.optimizers.Adam,
        "rmsprop": keras.optimizers.RMSprop,
        "ftrl": keras.optimizers.Ftrl,
    }
    return makers[rule](LR)


def parts(case: Case, size: int) -> list[int]:
    """Samples a rank."""
    if not case.dp_input:
        total = 4 * size + (1 if case.batch == "uneven" else 0)
        return [(r + 1) * total // size - r * total // size for r in range(size)]
    sizes = [4] * size
    if case.batch == "uneven":
        sizes = [4 + r for r in range(size)]
    if case.batch == "empty":
        sizes[-1] = 0 if size > 1 else 4
    return sizes


def random_bag(rng, rows: int, kind: str):
    """ids (some twice in a bag) and weights; ragged bags may be empty, weights may sum to 0."""
    n = {"one": 1, "one2d": 1, "fixed": 3, "weighted_fixed": 2}.get(kind, int(rng.integers(0, 4)))
    ids = rng.integers(0, rows, n).tolist()
    if not kind.startswith("weighted"):
        return ids, None
    weights = rng.uniform(0.1, 2.0, n).astype(np.float32).tolist()
    return ids, [0.0] * n if rng.random() < 0.15 else weights


def global_batch(case: Case, step: int, size: int):
    rng = np.random.default_rng(zlib.crc32(f"{case.name}/{step}".encode()))
    total = sum(parts(case, size))
    kinds = feature_kinds(case)
    batch = [[random_bag(rng, TABLE_SHAPES[t][0], k) for _ in range(total)] for t, k in kinds]
    given = batch
    if case.invalid_ids != "raise":
        batch, given = spoil(rng, batch, case.invalid_ids, kinds)
    return batch, given, rng.normal(size=total).astype(np.float32)


def spoil(rng, batch, policy: str, kinds):
    """The same batch with invalid ids put in, and what the policy makes of it."""
    given, effective = [], []
    for bags, (t, _) in zip(batch, kinds, strict=True):
        rows = TABLE_SHAPES[t][0]
        bad = [[int(rng.choice([i, i, i, -1, rows, 2**40])) for i in ids] for ids, _ in bags]
        given.append([(b, w) for b, (_, w) in zip(bad, bags, strict=True)])
        out = []
        for ids, (_, w) in zip(bad, bags, strict=True):
            if policy == "clip":
                out.append(([min(max(i, 0), rows - 1) for i in ids], w))
            else:
                keep = [j for j, i in enumerate(ids) if 0 <= i < rows]
                out.append(([ids[j] for j in keep], None if w is None else [w[j] for j in keep]))
        effective.append(out)
    return effective, given


def as_input(bags, kind: str, narrow: bool):
    """Ids and weights in the form `kind` says; int32 and int64 mixed."""
    dtype = np.int32 if narrow else np.int64
    ids, weights = [b[0] for b in bags], [b[1] for b in bags]
    if kind in ("one", "one2d", "fixed", "weighted_fixed"):
        width = {"one": 1, "one2d": 1, "fixed": 3, "weighted_fixed": 2}[kind]
        dense = np.array(ids, dtype).reshape(len(bags), width)
        w = np.array(weights, np.float32).reshape(len(bags), width) if kind.startswith("weighted") else None
        return (dense[:, 0] if kind == "one" else dense), w
    lengths = [len(i) for i in ids]
    flat = np.array([i for b in ids for i in b], dtype)
    ragged = tf.RaggedTensor.from_row_lengths(flat, np.array(lengths, np.int64))
    w = None
    if kind.startswith("weighted"):
        flat_w = np.array([x for b in weights for x in b], np.float32)
        w = tf.RaggedTensor.from_row_lengths(flat_w, np.array(lengths, np.int64))
    if kind.endswith("sparse"):
        shape = [len(bags), 3]  # a static shape of its own a batch would retrace every step
        return sparse(ragged, shape), None if w is None else sparse(w, shape)
    return ragged, w


def sparse(ragged, shape):
    value = ragged.to_sparse()
    return tf.SparseTensor(value.indices, value.values, shape)


def make_layer(case: Case, size: int):
    embeddings = [
        dmp.Embedding(rows, dim, combiner, name=f"t{i}")
        for i, ((rows, dim), combiner) in enumerate(zip(TABLE_SHAPES, COMBINERS, strict=True))
    ]
    kinds = feature_kinds(case)
    strategy = explicit_plan(case, size) if case.sharding in SHARDINGS else case.sharding
    data_parallel, row, column = case.thresholds
    return dmp.DistributedEmbedding(
        embeddings,
        strategy,
        column,
        row,
        data_parallel,
        dp_input=case.dp_input,
        input_table_map=[t for t, _ in kinds],
        feature_names=[f"f{i}_{k}" for i, (_, k) in enumerate(kinds)],
        invalid_ids=case.invalid_ids,
        wire_dtype=case.wire_dtype,
    )


def vector(output):
    """A feature's output as [B, dim]: vectors of an input without combiner are summed."""
    if isinstance(output, tf.RaggedTensor):
        return tf.reduce_sum(output, axis=1)
    return output if output.shape.rank == 2 else tf.reduce_sum(output, axis=1)


class Comparisons:
    """Differences found so far. They are raised at a case's end, so that the ranks stay in step."""

    def __init__(self, case: Case) -> None:
        self.limits = tolerance(case)
        self.found: list[str] = []

    def close(self, got, want, what: str) -> None:
        try:
            np.testing.assert_allclose(got, want, err_msg=what, **self.limits)
        except AssertionError as error:
            self.found.append(str(error))

    def true(self, condition: bool, what: str) -> None:
        if not condition:
            self.found.append(what)


def run_case(case: Case, rank: int, size: int) -> list[str]:
    kinds = feature_kinds(case)
    rng = np.random.default_rng(0)
    reference = Model(
        [rng.normal(0, 0.3, s) for s in TABLE_SHAPES],
        list(COMBINERS),
        [t for t, _ in kinds],
        [rng.normal(0, 0.3, TABLE_SHAPES[t][1]) for t, _ in kinds],
        slots=[{} for _ in TABLE_SHAPES],
    )
    reference.tables = [t.astype(np.float32).astype(np.float64) for t in reference.tables]
    layer = make_layer(case, size)
    head = [keras.Variable(h.astype(np.float32), name=f"h{i}") for i, h in enumerate(reference.head)]
    bias = keras.Variable(np.float32(0.0), name="bias")
    optimizer = keras_optimizer(case.rule)
    if case.entry != "keras":
        optimizer = dmp.DistributedOptimizer(optimizer)
    start = np.cumsum([0, *parts(case, size)])
    mine = slice(start[rank], start[rank + 1])
    traces, checks = [], Comparisons(case)

    @tf.function(reduce_retracing=True)
    def step_function(ids, weights, labels):
        traces.append(1)
        with tf.GradientTape() as tape:
            outputs = layer(ids, weights)
            logits = bias + tf.add_n(
                [tf.linalg.matvec(vector(o), h) for o, h in zip(outputs, head, strict=True)]
            )
            loss = tf.reduce_mean(tf.square(logits - labels))
        if case.entry in ("tape", "keras"):
            tape = dmp.DistributedGradientTape(tape)
        variables = [*layer.trainable_variables, *head, bias]
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss, outputs

    for step in range(STEPS):
        effective, given, labels = global_batch(case, step, size)
        local_names = layer.local_inputs
        local = [i for i, (_, k) in enumerate(kinds) if f"f{i}_{k}" in local_names]
        pieces = [
            as_input(
                given[i][mine] if case.dp_input else given[i],
                kinds[i][1],
                # 2^40 does not fit: the dtype would follow the data, and a trace the dtype.
                narrow=(i + rank) % 2 == 0 and case.invalid_ids == "raise",
            )
            for i in local
        ]
        ids, weights = [p[0] for p in pieces], [p[1] for p in pieces]
        if step == 0:
            if case.dp_input:
                layer.build([x.shape for x in ids])
            else:
                layer.build([tuple(x.shape) for x in ids])
            layer.set_weights([t.astype(np.float32) for t in reference.tables])
            optimizer.build(
                [*layer.trainable_variables, *head, bias]
            )  # inside the function it would be traced twice
        expected = reference.outputs(effective)
        _, outputs = step_function(ids, weights, labels[mine])
        check_outputs(checks, case, outputs, expected, given, mine)
        apply_reference(reference, case, effective, labels, step + 1)
    check_state(checks, case, reference, layer, head, bias, optimizer)
    checks.true(len(traces) <= 2, f"traced {len(traces)} times in {STEPS} steps")
    if case.invalid_ids != "raise" and case.dp_input:
        bad = sum(
            not 0 <= i < TABLE_SHAPES[t][0]
            for s in range(STEPS)
            for bags, (t, _) in zip(global_batch(case, s, size)[1], kinds, strict=True)
            for i in [i for b in bags[mine] for i in b[0]]
        )
        counts = layer.invalid_id_counts()
        checks.true(sum(counts.values()) == bad, f"counted {counts}, expected {bad} in all")
    return checks.found


def tolerance(case: Case) -> dict[str, float]:
    if case.wire_dtype == "bfloat16":
        return {"rtol": 2e-2, "atol": 2e-2}
    if case.wire_dtype == "float16":
        return {"rtol": 2e-3, "atol": 2e-3}
    if case.rule in ("adam", "rmsprop"):
        # The first updates are near lr * sign(gradient): where terms cancel, a float32 rounding shows in full.
        return {"rtol": 1e-5, "atol": 5e-5}
    return {"rtol": 1e-5, "atol": 2e-6}


def check_outputs(checks, case, outputs, expected, given, mine) -> None:
    for i, (output, want) in enumerate(zip(outputs, expected, strict=True)):
        t, kind = feature_kinds(case)[i]
        rows = [np.asarray(w) for w in want[mine]]
        got = output.to_list() if isinstance(output, tf.RaggedTensor) else output.numpy()
        checks.true(len(got) == len(rows), f"feature {i} {kind}: {len(got)} rows, expected {len(rows)}")
        for b, (g, w) in enumerate(zip(got, rows, strict=False)):
            have = np.asarray(g, np.float64).reshape(-1, TABLE_SHAPES[t][1])
            wish = np.atleast_2d(w).reshape(-1, TABLE_SHAPES[t][1])
            if case.invalid_ids == "zero" and COMBINERS[t] is None:
                # A dropped id keeps its place and reads zeros.
                full = np.zeros((len(given[i][mine][b][0]), TABLE_SHAPES[t][1]))
                full[[0 <= x < TABLE_SHAPES[t][0] for x in given[i][mine][b][0]]] = wish
                wish = full
            checks.close(have, wish, f"feature {i} {kind} {COMBINERS[t]} row {b}")


def apply_reference(reference: Model, case: Case, batch, labels, step: int) -> None:
    _, tables, head, bias, touched = reference.gradients(batch, labels.astype(np.float64))
    dense_rule = "adagrad" if case.rule == "rowwise_adagrad" else case.rule
    state = reference.slots
    for t, grad in enumerate(tables):
        rows = touched[t] if case.entry != "keras" else set(range(len(grad)))
        update_rows(
            case.rule if case.entry != "keras" else dense_rule,
            reference.tables[t],
            grad,
            rows,
            state[t],
            step,
            LR,
        )
    if not hasattr(reference, "dense_state"):
        reference.dense_state = [{} for _ in range(len(head) + 1)]
    values = [h[None] for h in reference.head] + [np.array([[reference.bias]])]
    gradients = [g[None] for g in head] + [np.array([[bias]])]
    for value, grad, slots in zip(values, gradients, reference.dense_state, strict=True):
        update_rows(dense_rule, value, grad, {0}, slots, step, LR)
    reference.head = [v[0] for v in values[:-1]]
    reference.bias = float(values[-1][0, 0])


def check_state(checks, case: Case, reference: Model, layer, head, bias, optimizer) -> None:
    for t, (got, want) in enumerate(zip(layer.get_weights(), reference.tables, strict=True)):
        checks.close(got, want, f"table {t}")
    for i, (got, want) in enumerate(zip(head, reference.head, strict=True)):
        checks.close(got.numpy(), want, f"head {i}")
    checks.close(bias.numpy(), reference.bias, "bias")
    if case.entry == "keras":
        return
    store: dict[str, np.ndarray] = {}
    optimizer.inner_optimizer.save_own_variables(store)
    for t, slots in enumerate(reference.slots):
        for name, want in slots.items():
            checks.close(store[f"0_{t}_{name}"], want, f"slot {name} of table {t}")


def main() -> None:
    set_name, out = sys.argv[1:3]
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    communicator = dmp.init()
    rank, size = communicator.rank, communicator.size
    results, seconds = {}, {}
    default_least = slot_layout.LEAST_BYTES
    for number, case in enumerate(SETS[set_name]()):
        # The tables here are small: in every other case their slots lie beside the rows all the same.
        slot_layout.LEAST_BYTES = number % 2 * default_least
        if only and only not in case.name:
            continue
        began = time.monotonic()
        try:
            found = run_case(case, rank, size)
        except Exception:
            print(f"{case.name} on rank {rank}:", file=sys.stderr, flush=True)
            raise
        error = f"rank {rank}: " + "\n".join(found)[:3000] if found else ""
        texts = gather_text(communicator, error)
        results[case.name] = "\n".join(t for t in texts if t)
        seconds[case.name] = round(time.monotonic() - began, 2)
        if rank == 0:  # after every case: a hang later leaves what is known
            Path(out).write_text(json.dumps({"results": results, "seconds": seconds}))
        keras.backend.clear_session(free_memory=False)
    dmp.shutdown()


if __name__ == "__main__":
    main()

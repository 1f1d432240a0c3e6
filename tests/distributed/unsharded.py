"""The reference: one process, whole tables, float64 NumPy, written without looking at the library."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Bag = tuple[list[int], list[float] | None]


@dataclass
class Model:
    """Tables, a linear head on every feature's (summed) vector, and the loss mean((logit - label)^2)."""

    tables: list[np.ndarray]
    combiners: list[str | None]
    feature_tables: list[int]
    head: list[np.ndarray]
    bias: float = 0.0
    slots: list[dict[str, np.ndarray]] = field(default_factory=list)

    def outputs(self, batch: list[list[Bag]]) -> list[list[np.ndarray]]:
        """For every feature and sample: [dim] pooled, [ids, dim] without combiner."""
        result = []
        for bags, t in zip(batch, self.feature_tables, strict=True):
            result.append([combine(self.tables[t], bag, self.combiners[t]) for bag in bags])
        return result

    def gradients(self, batch: list[list[Bag]], labels: np.ndarray):
        """Loss, gradients of tables (dense float64), of the head and of the bias; touched rows a table."""
        outputs = self.outputs(batch)
        vectors = [np.stack([np.atleast_2d(o).sum(0) for o in outs]) for outs in outputs]
        logits = self.bias + sum(v @ h for v, h in zip(vectors, self.head, strict=True))
        error = logits - labels
        upstream = 2.0 * error / len(labels)
        tables = [np.zeros_like(t) for t in self.tables]
        touched: list[set[int]] = [set() for _ in self.tables]
        for bags, t, head in zip(batch, self.feature_tables, self.head, strict=True):
            for (ids, weights), up in zip(bags, upstream, strict=True):
                for i, scale in zip(ids, scales(ids, weights, self.combiners[t]), strict=True):
                    tables[t][i] += up * scale * head
                    touched[t].add(i)
        head = [v.T @ upstream for v in vectors]
        return float(np.mean(error**2)), tables, head, float(upstream.sum()), touched


def scales(ids, weights, combiner):
    """What each id's vector is multiplied by."""
    w = np.ones(len(ids)) if weights is None else np.asarray(weights, np.float64)
    if combiner in (None, "sum"):
        return w
    total = w.sum() if combiner == "mean" else np.sqrt((w**2).sum())
    return w / total if total != 0 else w * 0


def combine(table, bag, combiner):
    ids, weights = bag
    factor = scales(ids, weights, combiner)[:, None]
    vectors = table[np.asarray(ids, int)] * factor
    return vectors if combiner is None else vectors.sum(0)


def update_rows(rule: str, table, grad, touched, slots, step, lr, columns=None):
    """One lazy update of the touched rows, in place. Keras's formulas and defaults."""
    rows = sorted(touched)
    if not rows:
        return
    w, g = table[rows], grad[rows]

    def slot(name, initial=0.0, width=None):
        shape = (len(table), width or table.shape[1])
        return slots.setdefault(name, np.full(shape, initial))

    if rule == "sgd":
        w = w - lr * g
    elif rule == "momentum":
        m = slot("momentum")
        m[rows] = 0.9 * m[rows] - lr * g
        w = w + m[rows]
    elif rule == "adagrad":
        a = slot("accumulator", 0.1)
        a[rows] += g**2
        w = w - lr * g / np.sqrt(a[rows] + 1e-7)
    elif rule == "rowwise_adagrad":
        a = slot("accumulator", 0.1, 1)
        a[rows] += (g**2).mean(1, keepdims=True)
        w = w - lr * g / np.sqrt(a[rows] + 1e-7)
    elif rule == "adam":
        m, v = slot("momentum"), slot("velocity")
        m[rows] += (g - m[rows]) * 0.1
        v[rows] += (g**2 - v[rows]) * 0.001
        alpha = lr * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        w = w - m[rows] * alpha / (np.sqrt(v[rows]) + 1e-7)
    elif rule == "rmsprop":
        v = slot("velocity")
        v[rows] = 0.9 * v[rows] + 0.1 * g**2
        w = w - lr * g / np.sqrt(v[rows] + 1e-7)
    elif rule == "ftrl":
        n, z = slot("accumulator", 0.1), slot("linear")
        new = n[rows] + g**2
        z[rows] += g - (np.sqrt(new) - np.sqrt(n[rows])) / lr * w
        n[rows] = new
        w = -z[rows] / (np.sqrt(new) / lr)
    else:
        raise ValueError(rule)
    table[rows] = w

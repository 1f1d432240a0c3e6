"""Hypothesis strategies of the planner's tests: tables, features that read them in any order, plans."""

from hypothesis import strategies as st

from distributed_embeddings.planner import FeatureSpec, TableSpec, make_plan

NAMES = ("auto", "basic", "memory_balanced", "memory_optimized")


@st.composite
def table_specs(draw, index, max_rows=70, max_dim=19):
    dim = draw(st.integers(1, max_dim))
    return TableSpec(
        f"t{index}",
        draw(st.integers(1, max_rows)),
        dim,
        draw(st.sampled_from((None, "sum", "mean", "sqrtn"))),
        draw(st.sampled_from(("float16", "float32", "float64"))),
        draw(st.sampled_from((0, 1, dim, 2 * dim))),
    )


@st.composite
def problems(draw, max_tables=9):
    """Tables and features: tables shared, read in any order, or read by no feature."""
    tables = [draw(table_specs(i)) for i in range(draw(st.integers(1, max_tables)))]
    read = draw(st.lists(st.integers(0, len(tables) - 1), max_size=12))
    features = [
        FeatureSpec(f"f{i}", f"t{table}", draw(st.sampled_from((None, 1, 3))), draw(st.booleans()))
        for i, table in enumerate(read)
    ]
    return tables, features


def _threshold():
    return st.none() | st.integers(0, 1500)


@st.composite
def settings_of_plans(draw):
    """Keyword arguments of `make_plan`, thresholds in every combination."""
    return {
        "strategy": draw(st.sampled_from(NAMES)),
        "column_slice_threshold": draw(_threshold()),
        "row_slice_threshold": draw(_threshold()),
        "data_parallel_threshold": draw(_threshold()),
        "row_pooling": draw(st.sampled_from(("destination", "owner"))),
        "row_layout": draw(st.sampled_from((None, "cyclic", "contiguous"))),
    }


def world_sizes(most=16):
    return st.integers(1, most)


def plan_or_none(tables, features, world_size, **settings):
    """Return the plan, or None where the workers cannot all get a part, which must be true."""
    try:
        return make_plan(tables, features, world_size, **settings)
    except ValueError as error:
        if not str(error).startswith("`world_size` must be small enough"):
            raise
        least = settings.get("data_parallel_threshold")
        by_default = least is None and settings["strategy"] == "auto"
        copied = 2**14 if by_default else (least or 0)
        rest = [t for t in tables if t.num_elements >= copied]
        limit = settings.get("row_slice_threshold")
        by_rows = [t for t in rest if limit is not None and t.num_elements > limit and t.vocabulary_size > 1]
        sliced = [t for t in rest if t not in by_rows]
        rows = max((t.vocabulary_size for t in by_rows), default=0)
        columns = sum(min(t.embedding_dim, world_size) for t in sliced)
        if rows + columns >= world_size or any(t.vocabulary_size >= world_size for t in sliced):
            raise
        return None

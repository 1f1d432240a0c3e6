"""What is placed (tables, features) and where it can go (topology): frozen, never changed by planning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, ClassVar, TypeVar

COMBINERS = (None, "sum", "mean", "sqrtn")
DTYPE_BYTES: Mapping[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

Spec = TypeVar("Spec", bound="_Spec")


def received(value: object) -> str:
    """Return "value (of type …)" for an error text."""
    return f"{value!r} (of type {type(value).__name__})"


def check_int(owner: str, name: str, value: object, low: int, high: int | None = None) -> int:
    """Return `value` as an int of [low, high]; NumPy integers are taken, bools are not. Raises ValueError."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= low and (high is None or number <= high):
            return number
    limit = f"of at least {low}" if high is None else f"of {low} to {high}"
    raise ValueError(f"`{name}` must be an integer {limit}. Received: {name}={received(value)} in {owner}.")


def _check_name(owner: str, name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"`{name}` must be a string that is not empty. Received: {name}={received(value)} in {owner}."
        )


class _Spec:
    """JSON-able dicts of a flat frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-able dict."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_dict(cls: type[Spec], data: Mapping[str, Any]) -> Spec:
        """Build from `to_dict`'s answer. Raises ValueError on a field that is unknown or missing."""
        if not isinstance(data, Mapping):
            raise ValueError(f"`{cls.__name__}` must be given as a mapping. Received: data={received(data)}.")
        unknown = sorted(set(data) - {each.name for each in fields(cls)})
        if unknown:
            raise ValueError(f"`{cls.__name__}` has no field {unknown[0]!r}. Received: data={dict(data)!r}.")
        try:
            return cls(**data)
        except TypeError as error:
            raise ValueError(
                f"`{cls.__name__}` lacks a field: {error}. Received: data={dict(data)!r}."
            ) from error

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(
            self, name, value
        )  # the frozen dataclass's own way in, used during construction only


@dataclass(frozen=True)
class TableSpec(_Spec):
    """One embedding table.

    vocabulary_size: rows. embedding_dim: columns. combiner: how a bag of ids becomes one vector; None keeps
    them apart. dtype: a float dtype's name. slot_elements_per_row: optimizer state beside a row, in elements,
    for memory figures. initializer: a serialised Keras initializer, or None for Keras's default of
    `Embedding`. Raises ValueError naming the field.
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    combiner: str | None = None
    dtype: str = "float32"
    slot_elements_per_row: int = 0
    # A mapping has no hash; equality still compares it.
    initializer: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        _check_name("a TableSpec", "name", self.name)
        owner = f"table {self.name!r}"
        for name, low in (("vocabulary_size", 1), ("embedding_dim", 1), ("slot_elements_per_row", 0)):
            self._set(name, check_int(owner, name, getattr(self, name), low))
        if self.combiner is not None and self.combiner not in COMBINERS:
            raise ValueError(
                f"`combiner` must be one of {COMBINERS}. "
                f"Received: combiner={received(self.combiner)} in {owner}."
            )
        if not isinstance(self.dtype, str) or self.dtype not in DTYPE_BYTES:
            raise ValueError(
                f"`dtype` must be one of {tuple(DTYPE_BYTES)}. "
                f"Received: dtype={received(self.dtype)} in {owner}."
            )
        if self.initializer is not None:
            self._set("initializer", _own_json_mapping(owner, self.initializer))

    @property
    def num_elements(self) -> int:
        """Rows × columns."""
        return self.vocabulary_size * self.embedding_dim

    def block_bytes(self, rows: int, columns: int) -> int:
        """Return the bytes of `rows` × `columns` of this table with the optimizer's slots beside them.

        Whole multiples of `embedding_dim` in `slot_elements_per_row` are slots an element (Adagrad, Adam) and
        are cut with the columns; the rest are slots a row (row-wise Adagrad), which every column slice has.
        """
        per_element, per_row = divmod(self.slot_elements_per_row, self.embedding_dim)
        return rows * (columns * (1 + per_element) + per_row) * DTYPE_BYTES[self.dtype]


def _own_json_mapping(owner: str, value: object) -> dict[str, Any]:
    """Return a private copy of `value` as JSON gives it back: a saved plan equals the one in memory."""
    if isinstance(value, Mapping):
        try:
            copy: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
            return copy
        except (TypeError, ValueError) as error:
            reason = f": {error}"
    else:
        reason = ""
    raise ValueError(
        f"`initializer` must be a JSON-able mapping or None{reason}. "
        f"Received: initializer={received(value)} in {owner}."
    )


@dataclass(frozen=True)
class FeatureSpec(_Spec):
    """One input: which table it reads, how many ids a sample has (hotness; None = ragged), whether ids carry
    weights.

    Raises ValueError naming the field.
    """

    name: str
    table: str
    hotness: int | None = 1
    weighted: bool = False

    def __post_init__(self) -> None:
        _check_name("a FeatureSpec", "name", self.name)
        owner = f"feature {self.name!r}"
        _check_name(owner, "table", self.table)
        if self.hotness is not None:
            self._set("hotness", check_int(owner, "hotness", self.hotness, 1))
        if not isinstance(self.weighted, bool):
            raise ValueError(
                f"`weighted` must be True or False. Received: weighted={received(self.weighted)} in {owner}."
            )


@dataclass(frozen=True)
class Topology(_Spec):
    """The machines: workers, workers a node, memory in bytes a worker (None = not limited).

    Raises ValueError naming the field.
    """

    world_size: int
    local_size: int | None = None
    device_memory: int | None = None
    host_memory: int | None = None

    def __post_init__(self) -> None:
        self._set("world_size", check_int("a Topology", "world_size", self.world_size, 1))
        if self.local_size is not None:
            self._set(
                "local_size", check_int("a Topology", "local_size", self.local_size, 1, self.world_size)
            )
        for name in ("device_memory", "host_memory"):
            if getattr(self, name) is not None:
                self._set(name, check_int("a Topology", name, getattr(self, name), 1))

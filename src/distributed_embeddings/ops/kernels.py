"""The compiled kernels: whether they are there, whether they fit this TensorFlow, and their ops."""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import tensorflow as tf

from distributed_embeddings import __version__

_REBUILD = (
    "Build them again against the TensorFlow that is installed: `make setup` in a checkout, "
    "or `pip install --no-deps --force-reinstall .` in the sources"
)
_ABSENT = (
    "distributed_embeddings runs WITHOUT its C++ kernels, several times as slow: no _demb_kernels.so is installed, "
    "because the package was built without a C++ compiler or with DEMB_KERNELS=OFF. With g++ installed: "
    "`make setup` in a checkout, or `pip install --no-deps --force-reinstall .` in the sources. "
    "To do without them on purpose and without this warning, set DEMB_KERNELS=off in the environment"
)


@dataclass(frozen=True)
class _Build:
    """A compiled library and what it was compiled for."""

    path: Path
    version: str
    tensorflow: str

    @classmethod
    def read(cls, folder: Path) -> _Build | None:
        """The build in a folder, None where there is none."""
        path = folder / "_demb_kernels.so"
        if not path.exists():
            return None
        try:
            told = json.loads((folder / "_demb_kernels.json").read_text())
            return cls(path, told["version"], told["tensorflow"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ImportError(
                f"{path} is there, but the file beside it that says what it was built for, "
                f"_demb_kernels.json, cannot be read: {error!r}. {_REBUILD}."
            ) from error

    def check(self) -> None:
        # Before loading: TensorFlow's C++ symbols carry absl's version, so that a library built for another minor
        # ends in an undefined symbol, or worse, in a class with other members.
        if _minor(self.tensorflow) != _minor(tf.__version__):
            raise ImportError(
                f"The C++ kernels in {self.path} were built for TensorFlow {self.tensorflow}, but TensorFlow "
                f"{tf.__version__} is installed; they fit one minor release only. {_REBUILD}."
            )
        if self.version != __version__:
            raise ImportError(
                f"The C++ kernels in {self.path} belong to distributed_embeddings {self.version}, but this is "
                f"{__version__}. {_REBUILD}."
            )


def available() -> bool:
    """Whether the compiled kernels can be used.

    False where they were not built (with one RuntimeWarning a process) and where the environment says
    DEMB_KERNELS=off (silently). The environment is read at every call: one process can compare both paths.

    Raises:
        ImportError: the kernels were built for another minor release of TensorFlow, or for another release of
            this package; it says for which and what to do.
        ValueError: DEMB_KERNELS is neither "on" nor "off".
    """
    if _setting("DEMB_KERNELS", "on", "off") == "off":
        return False
    if _build() is None:
        _warn_once()
        return False
    return True


def library() -> ModuleType:
    """The generated Python functions of the compiled ops; loaded once.

    Raises:
        RuntimeError: `available()` is False.
        ValueError: as in `available`, or DEMB_ISA is neither "native" nor "portable".
        ImportError: as in `available`, or the library cannot be loaded.
    """
    _setting("DEMB_ISA", "native", "portable")
    build = _build() if available() else None
    if build is None:
        raise RuntimeError(
            "The C++ kernels are not there; ask `kernels.available()` before `kernels.library()`."
        )
    return _load(build.path)


def register() -> None:
    """Make the compiled ops known to TensorFlow, as loading a SavedModel that has them needs. Nothing where the library
    is not built, or not wanted.

    Raises:
        ImportError: as in `available`.
    """
    if os.environ.get("DEMB_KERNELS", "on") == "on" and _build() is not None:
        library()


def enabled_for(where: tf.Variable | tf.Tensor | str) -> bool:
    """Whether the kernels can be used on this variable, tensor or device: they are there and it is a CPU.

    A variable, tensor or device name that names no device stands for TensorFlow's default: the first visible GPU.
    """
    device = where if isinstance(where, str) else getattr(where, "device", None)
    if not isinstance(device, str):
        raise TypeError(
            "`where` must be a tf.Variable, a tf.Tensor or the name of a device (of a keras.Variable, pass `.value`). "
            f"Received: where={where!r} (of type {type(where).__name__})"
        )
    kind = tf.DeviceSpec.from_string(device).device_type
    on_cpu = kind == "CPU" if kind else not tf.config.get_visible_devices("GPU")
    return on_cpu and available()


def _setting(name: str, usual: str, other: str) -> str:
    value = os.environ.get(name, usual)
    if value not in (usual, other):
        raise ValueError(
            f"The environment's `{name}` must be '{usual}' or '{other}'. Received: {name}={value!r}"
        )
    return value


@functools.cache
def _build() -> _Build | None:
    for folder in _folders():
        build = _Build.read(folder)
        if build is not None:
            build.check()
            return build
    return None


def _folders() -> list[Path]:
    """Where the library may lie: beside this file, or, in an editable install, in site-packages."""
    return [Path(__file__).parent, *(Path(p) / "distributed_embeddings" / "ops" for p in sys.path)]


@functools.cache
def _load(path: Path) -> ModuleType:
    try:
        return tf.load_op_library(str(path))
    except tf.errors.OpError as error:
        raise ImportError(f"{path} cannot be loaded: {error.message}. {_REBUILD}.") from error


@functools.cache
def _warn_once() -> None:
    warnings.warn(_ABSENT, RuntimeWarning, stacklevel=3)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]

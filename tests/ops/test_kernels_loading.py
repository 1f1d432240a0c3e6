"""The compiled kernels are loaded only where they fit; where they are not, it is said once, or not at all."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path

import pytest
import tensorflow as tf

from distributed_embeddings import __version__
from distributed_embeddings.ops import kernels

CMAKE = Path(__file__).resolve().parents[2] / "csrc/cmake/tensorflow_ops.cmake"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """As in a new process, before and after; the environment does not say whether kernels are wanted."""
    monkeypatch.delenv("DEMB_KERNELS", raising=False)
    for cached in (kernels._build, kernels._warn_once):
        cached.cache_clear()
    yield
    for cached in (kernels._build, kernels._warn_once):
        cached.cache_clear()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Make the loader look in an empty folder only, or put a library there whose JSON says what is asked."""
    monkeypatch.setattr(kernels, "_folders", lambda: [tmp_path])

    def put(**changed: str) -> Path:
        (tmp_path / "_demb_kernels.so").write_bytes(b"no library")
        told = {"version": __version__, "tensorflow": tf.__version__, **changed}
        (tmp_path / "_demb_kernels.json").write_text(json.dumps(told))
        return tmp_path

    return put


def test_another_minor_of_tensorflow_is_an_import_error_that_names_both_and_the_fix(install):
    folder = install(tensorflow="2.7.3")
    for _ in range(2):  # not only the first time
        with pytest.raises(ImportError) as raised:
            kernels.available()
        for told in ("2.7.3", tf.__version__, "make setup", "pip install", str(folder)):
            assert told in str(raised.value)


def test_another_patch_of_tensorflow_fits(install):
    major, minor, _ = tf.__version__.split(".", 2)
    install(tensorflow=f"{major}.{minor}.99")
    assert kernels.available()


def test_another_release_of_the_package_is_an_import_error(install):
    install(version="0.0.1")
    with pytest.raises(ImportError, match=rf"0\.0\.1.*{re.escape(__version__)}.*make setup"):
        kernels.available()


@pytest.mark.parametrize("text", ["", "[]", '{"version": "0.1.0"}', None])
def test_a_library_that_does_not_say_what_it_is_for_is_an_import_error(install, text):
    path = install() / "_demb_kernels.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(ImportError, match=r"_demb_kernels\.json, cannot be read"):
        kernels.available()


def test_a_file_that_is_no_library_is_an_import_error(install):
    install()
    with pytest.raises(ImportError, match="cannot be loaded"):
        kernels.library()


def test_absent_kernels_warn_once_and_are_not_available(install):
    with pytest.warns(RuntimeWarning, match="WITHOUT its C\\+\\+ kernels.*make setup.*DEMB_KERNELS=off"):
        assert kernels.available() is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.available() is False
        assert kernels.enabled_for("/CPU:0") is False
        with pytest.raises(RuntimeError, match="available"):
            kernels.library()


def test_turned_off_kernels_are_silent(install, monkeypatch):
    monkeypatch.setenv("DEMB_KERNELS", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.available() is False
        # What is turned off is not looked at either.
        install(tensorflow="2.7.3")
        assert kernels.available() is False
    with pytest.raises(RuntimeError, match="available"):
        kernels.library()


def test_the_environment_counts_at_every_call(install, monkeypatch):
    install()
    assert kernels.available()
    monkeypatch.setenv("DEMB_KERNELS", "off")
    assert not kernels.available()
    monkeypatch.setenv("DEMB_KERNELS", "no")
    with pytest.raises(ValueError, match="'on' or 'off'. Received: DEMB_KERNELS='no'"):
        kernels.available()


def test_a_wrong_instruction_set_is_an_error(install, monkeypatch):
    install()
    for wrong in ("PORTABLE", "avx2", ""):
        monkeypatch.setenv("DEMB_ISA", wrong)
        with pytest.raises(ValueError, match=f"'native' or 'portable'. Received: DEMB_ISA='{wrong}'"):
            kernels.library()


def test_enabled_for_cpu_only(install):
    install()
    for where in (
        "/CPU:0",
        "/job:worker/replica:0/task:1/device:CPU:0",
        tf.Variable([1.0]),
        tf.constant([1.0]),
    ):
        assert kernels.enabled_for(where)
    assert not kernels.enabled_for("/job:localhost/replica:0/task:0/device:GPU:0")
    assert not kernels.enabled_for("/TPU:3")
    with pytest.raises(TypeError, match=r"`where` must be .* Received: where=3 \(of type int\)"):
        kernels.enabled_for(3)


def test_no_device_stands_for_the_first_visible_gpu(install, monkeypatch):
    install()
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    for visible in ([], [gpu]):
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind, visible=visible: visible)
        assert kernels.enabled_for("") is (visible == [])


def test_no_warning_about_kernels_where_they_are_not_asked_for(install):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not kernels.enabled_for("/GPU:0")


@pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("clang++")), reason="no C++ compiler: no kernels"
)
def test_the_installed_library_loads_once():
    first = kernels.library()
    assert kernels.library() is first
    assert any(name.startswith("demb_") for name in dir(first))


def test_the_build_uses_tensorflows_own_flags():
    text = CMAKE.read_text()
    for flag in tf.sysconfig.get_compile_flags():
        if flag.startswith("-D"):
            assert flag.removeprefix("-D") in text
    assert tf.sysconfig.get_link_flags()[1] in text

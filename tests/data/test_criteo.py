"""Criteo text against a slow reader written out plainly, in every odd shape such files come in."""

import gzip
import logging
import math
import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distributed_embeddings.data import Batches, CriteoTsv
from distributed_embeddings.data.criteo import log_transform
from distributed_embeddings.data.hashing import hash_buckets

GOOD = ["1", *map(str, range(-3, 10)), *(f"{i:08x}" for i in range(26))]
FILE = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

integers = st.one_of(st.just(""), st.integers(-(2**63), 2**63 - 1).map(str), st.integers(-3, 99).map(str))
odd_integers = st.one_of(integers, st.sampled_from(["007", "-0", "0" * 30 + "5"]))
hexes = st.one_of(
    st.just(""),
    st.integers(0, 2**32 - 1).map("{:08x}".format),
    st.integers(0, 2**32 - 1).map("{:x}".format),
    st.integers(0, 2**32 - 1).map("{:X}".format),
)
rows = st.tuples(
    st.sampled_from("01"),
    st.lists(odd_integers, min_size=13, max_size=13),
    st.lists(hexes, min_size=26, max_size=26),
)
bad_fields = st.tuples(
    st.integers(0, 39),
    st.sampled_from(["x", "1.5", " 1", "+1", "0x1F", "2", "", "g", "123456789a", "é", '"', "\r", "\0"]),
)
endings = st.sampled_from(["\n", "\r\n"])


def slow_row(line):
    """(label, numbers, categories) of one line, missing as None; None if it is bad."""
    fields = line.removesuffix("\r").split("\t")  # a line ends with LF or CRLF
    fields += [""] * (40 - len(fields))
    integer = re.compile(r"-?[0-9]+")
    if len(fields) > 40 or fields[0] not in ("0", "1"):
        return None
    if any(f and not (integer.fullmatch(f) and -(2**63) <= int(f) < 2**63) for f in fields[1:14]):
        return None
    if any(f and not re.fullmatch(r"[0-9a-fA-F]{1,8}", f) for f in fields[14:]):
        return None
    return (
        int(fields[0]),
        [int(f) if f else None for f in fields[1:14]],
        [int(f, 16) if f else -1 for f in fields[14:]],
    )


def raw_rows(reader):
    found = []
    for raw in reader.raw_blocks():
        for label, numbers, categories in zip(raw.labels, raw.numbers, raw.categorical, strict=True):
            plain = [None if math.isnan(n) else n for n in numbers.tolist()]
            found.append((int(label), plain, categories.tolist()))
    return found


def as_floats(row):
    return row[0], [None if n is None else float(n) for n in row[1]], row[2]


@FILE
@given(data=st.data())
def test_odd_files_read_as_written(tmp_path, data):
    """CRLF, blank lines, rows cut at trailing empties, no last newline, gzip, several files, small blocks."""
    files, expected = [], []
    for number in range(data.draw(st.integers(1, 3))):
        text = ""
        for row in data.draw(st.lists(rows, max_size=6)):
            line = "\t".join([row[0], *row[1], *row[2]])
            line = line.rstrip("\t") if data.draw(st.booleans()) else line
            text += line + data.draw(endings) + data.draw(st.sampled_from(["", "\n", "\r\n\n"]))
            expected.append(as_floats(slow_row(line)))
        text = text if data.draw(st.booleans()) else text.rstrip("\r\n")
        path = tmp_path / f"part{number}"
        path.write_bytes(gzip.compress(text.encode()) if data.draw(st.booleans()) else text.encode())
        files.append(path)
    reader = CriteoTsv(files, block_bytes=data.draw(st.integers(1000, 3000)))
    assert raw_rows(reader) == expected
    assert reader.load().num_rows == len(expected)


@FILE
@given(data=st.data())
def test_bad_rows_agree_with_the_slow_reader(tmp_path, data):
    """Whatever stands in a field: skipped and counted, or raised with its line, if and only if it is bad."""
    lines = []
    for row in data.draw(st.lists(rows, min_size=1, max_size=5)):
        fields = [row[0], *row[1], *row[2]]
        for position, text in data.draw(st.lists(bad_fields, max_size=2)):
            fields[position] = text
        lines.append("\t".join(fields + [""] * data.draw(st.sampled_from([0, 0, 0, 1]))))
    path = tmp_path / "clicks.tsv"
    path.write_bytes("\n".join(lines).encode() + b"\n")
    expected = [slow_row(line) for line in lines]
    reader = CriteoTsv(path, bad_rows="skip")
    assert raw_rows(reader) == [as_floats(row) for row in expected if row]
    assert reader.skipped_rows == expected.count(None)
    if None in expected:
        with pytest.raises(ValueError, match=re.escape(f"{path}:{1 + expected.index(None)}: ")):
            CriteoTsv(path).load()


def changed(position, text):
    return [*GOOD[:position], text, *GOOD[position + 1 :]]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([*GOOD, ""], "a row must have 40 fields separated by tabs. Received: 41 fields."),
        (changed(0, "2"), "the label must be 0 or 1. Received: '2'."),
        (changed(0, ""), "the label must be 0 or 1. Received: ''."),
        (changed(5, "1.5"), "I5 must be an integer of 64 bits or empty. Received: '1.5'."),
        (changed(13, "0x1F"), "I13 must be an integer of 64 bits or empty. Received: '0x1F'."),
        (changed(1, str(2**63)), f"I1 must be an integer of 64 bits or empty. Received: '{2**63}'."),
        (changed(1, "9" * 5000), f"I1 must be an integer of 64 bits or empty. Received: '{'9' * 57}...'."),
        (changed(14, "zz"), "C1 must be a hexadecimal number of at most 8 digits or empty. Received: 'zz'."),
        (
            changed(39, "123456789"),
            "C26 must be a hexadecimal number of at most 8 digits or empty. Received: '123456789'.",
        ),
        (
            changed(20, '"a"'),
            "C7 must be a hexadecimal number of at most 8 digits or empty. Received: '\"a\"'.",
        ),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_bad_lines_are_named_with_their_place(tmp_path, fields, text, zipped):
    good = "\t".join(GOOD) + "\r\n"
    content = (good * 30 + "\n" + "\t".join(fields) + "\n" + good).encode()
    path = tmp_path / "clicks.tsv"
    path.write_bytes(gzip.compress(content) if zipped else content)
    for block_bytes in (1 << 20, 6000):
        with pytest.raises(ValueError) as caught:
            CriteoTsv(path, block_bytes=block_bytes).load()
        assert str(caught.value).startswith(f"{path}:32: {text} ")
    assert "bad_rows='skip'" in str(caught.value)


def test_short_rows_are_padded_or_refused(tmp_path, caplog):
    path = tmp_path / "clicks.tsv"
    path.write_text("\t".join(GOOD) + "\n" + "\t".join(GOOD[:30]) + "\n0\n")
    reader = CriteoTsv(path)
    with caplog.at_level(logging.INFO):
        found = raw_rows(reader)
    assert found[1][2] == [*range(16), *[-1] * 10]
    assert found[2] == (0, [None] * 13, [-1] * 26)
    assert reader.padded_rows == 2 and f"{path}: padded 2 rows cut short" in caplog.text
    with pytest.raises(
        ValueError, match=r"clicks.tsv:2: .* 40 fields .* Received: 30 fields \(strict=False would pad"
    ):
        CriteoTsv(path, strict=True).load()
    skipping = CriteoTsv(path, strict=True, bad_rows="skip")
    assert skipping.load().num_rows == 1 and skipping.skipped_rows == 2
    assert f"{path}: skipped 2 bad rows" in caplog.text


def test_padding_and_skipping_in_one_block_are_counted_apart(tmp_path):
    path = tmp_path / "clicks.tsv"
    path.write_text("\n".join(["\t".join(GOOD), "0", "2", "1\t5\r", "", "\t".join(changed(4, "x"))]))
    reader = CriteoTsv(path, bad_rows="skip")
    assert [row[0] for row in raw_rows(reader)] == [1, 0, 1]
    assert (reader.padded_rows, reader.skipped_rows) == (2, 2)


def test_error_reaches_a_dataset_with_its_place_and_no_other(tmp_path):
    path = tmp_path / "clicks.tsv"
    path.write_text("2\n")
    with pytest.raises(ValueError) as caught:
        CriteoTsv(path).load()
    assert caught.value.__context__ is None
    dataset = Batches(CriteoTsv(path), 4).to_tf_dataset()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"{re.escape(str(path))}:1: the label must be 0 or 1"
    ):
        list(dataset)


def test_empty_blank_and_marked_files(tmp_path):
    for name, content in {
        "empty": b"",
        "blank": b"\n\r\n\n",
        "bom": b"\xef\xbb\xbf" + "\t".join(GOOD).encode(),
    }.items():
        (tmp_path / name).write_bytes(content)
    assert CriteoTsv([tmp_path / "empty", tmp_path / "blank"]).load().num_rows == 0
    assert CriteoTsv(tmp_path / "bom").load().num_rows == 1
    with pytest.raises(ValueError, match=r"at least one row an epoch\. Received: fewer in epoch 0"):
        next(Batches(CriteoTsv(tmp_path / "empty"), 4).epochs(0, 1))


def test_cut_gzip_and_endless_line_are_named(tmp_path):
    whole = gzip.compress(("\t".join(GOOD) + "\n").encode() * 5000)
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut.gz:\d+: the gzip file must be whole"):
        CriteoTsv(tmp_path / "cut.gz", block_bytes=4096).load()
    (tmp_path / "binary").write_bytes(b"a" * 100_000)
    with pytest.raises(ValueError, match=r"binary:1: a line must fit into a block of 4096 bytes"):
        CriteoTsv(tmp_path / "binary", block_bytes=4096).load()


def test_stream_and_table_give_the_same_batches(tmp_path):
    path = tmp_path / "clicks.tsv"
    path.write_text("".join("\t".join(changed(15, f"{i:x}")) + "\n" for i in range(100)))
    reader = CriteoTsv(path, buckets=50, block_bytes=4096)
    streamed, loaded = (list(Batches(source, 16)) for source in (reader, reader.load()))
    assert len(streamed) == len(loaded) == 7
    for (left, left_labels), (right, right_labels) in zip(streamed, loaded, strict=True):
        assert left.keys() == right.keys() == {"dense", *(f"C{i}" for i in range(1, 27))}
        assert all(np.array_equal(left[name], right[name]) for name in left)
        assert left["C2"].dtype == np.int64 and left["dense"].dtype == np.float32
        assert np.array_equal(left_labels, right_labels)


def test_buckets_a_feature_and_missing_apart():
    values = np.tile(np.arange(-1, 20_000, dtype=np.int64)[:, None], (1, 26))
    sizes = np.array([2, 3, 1000, *[500] * 23])
    ids = hash_buckets(values, sizes)
    assert (ids[0] == 0).all() and (ids[1:] >= 1).all()
    assert (ids.max(axis=0) == sizes - 1).all()
    # Spread: 20,000 values into 999 buckets, chi-square within five deviations of its mean.
    counts = np.bincount(ids[1:, 2], minlength=1000)[1:]
    chi = float(((counts - 20_000 / 999) ** 2 / (20_000 / 999)).sum())
    assert abs(chi - 998) < 5 * math.sqrt(2 * 998)
    assert (ids[1:, 3] == ids[1:, 4]).mean() < 0.01
    # Fixed for good: a model saved today reads the same ids tomorrow.
    for value in (0, 0x68FD1E64, 2**32 - 1):
        got = hash_buckets(np.full((1, 26), value), np.full(26, 1000))[0]
        assert got.tolist() == [slow_bucket(value, feature, 1000) for feature in range(26)]
    assert slow_bucket(0x68FD1E64, 0, 1000) == 298


def slow_bucket(value, feature, buckets):
    mask = 2**64 - 1
    z = (value + (feature + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return 1 + (((z ^ z >> 31) >> 32) * (buckets - 1) >> 32)


@pytest.mark.parametrize("buckets", [1, [100] * 25, [100] * 25 + [1], 2**31 + 1])
def test_bad_buckets_and_policy(tmp_path, buckets):
    (tmp_path / "a").write_text("")
    with pytest.raises(ValueError, match="`buckets` must be one number or 26 of them"):
        CriteoTsv(tmp_path / "a", buckets=buckets)
    with pytest.raises(ValueError, match=r"`bad_rows` must be 'raise' or 'skip'\. Received: 'ignore'"):
        CriteoTsv(tmp_path / "a", bad_rows="ignore")
    assert [f.vocabulary_size for f in CriteoTsv(tmp_path / "a", buckets=[7] * 26).features] == [7] * 26


def test_log_transform_is_finite():
    numbers = np.array([[np.nan, -5, 0, 1, 2.0**63, -(2.0**63)]])
    expected = [0, 0, 0, math.log(2), math.log(2.0**63 + 1), 0]
    np.testing.assert_allclose(log_transform(numbers)[0], expected, rtol=1e-6)

"""Braces, globs, lists, and names of what is not there."""

import pytest

from distributed_embeddings.data import expand_paths
from distributed_embeddings.data.paths import expand_braces


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x", ["x"]),
        ("a{b,c}d", ["abd", "acd"]),
        ("{a,b}{1,2}", ["a1", "a2", "b1", "b2"]),
        ("x{a,b{1,2}}y", ["xay", "xb1y", "xb2y"]),
        ("{,a}b", ["b", "ab"]),
        ("{a}", ["{a}"]),
        ("{a", ["{a"]),
        ("{a{b,c}", ["{ab", "{ac"]),
        ("{a{b,c}}", ["{ab}", "{ac}"]),
    ],
)
def test_braces(pattern, expected):
    assert expand_braces(pattern) == expected


def test_patterns_to_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.tsv", "dev.tsv", "test.tsv", "odd[1].tsv", "sub/deep.tsv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")

    def names(*patterns):
        return [str(path) for path in expand_paths(patterns)]

    assert names("{test,dev}.tsv") == ["test.tsv", "dev.tsv"]
    assert names("t*.tsv", "dev.tsv") == ["test.tsv", "train.tsv", "dev.tsv"]
    assert names("{t*,test}.tsv") == ["test.tsv", "train.tsv"]
    assert names("odd[1].tsv") == ["odd[1].tsv"]
    assert names("**/deep.tsv") == ["sub/deep.tsv"]
    assert [str(path) for path in expand_paths("dev.tsv")] == ["dev.tsv"]
    with pytest.raises(FileNotFoundError, match=r"'none.tsv' \(from '\{dev,none\}.tsv'\) matches no file"):
        names("{dev,none}.tsv")
    with pytest.raises(FileNotFoundError, match=r"'\*.gz' matches no file. Working directory"):
        names("*.gz")
    with pytest.raises(FileNotFoundError, match="'sub' is a directory"):
        names("sub")
    with pytest.raises(FileNotFoundError, match="At least one file"):
        expand_paths([])

"""MovieLens, libFM and weighted interactions on small files made here."""

import numpy as np
import pytest

from distributed_embeddings.data import WeightedInteractions, load_libfm, load_movielens

USERS = """user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token
9\t17\tM\tother\t1
10\t56\tF\twriter\t2
"""
ITEMS = """item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq
1\tA B\t1995\tDrama War
2\tC\t1995\t
3\tD\t1990\tWar
"""
HEAD = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


def movielens(path, ratings):
    for suffix, text in (("user", USERS), ("item", ITEMS), ("inter", HEAD + ratings)):
        (path / f"ml-100k.{suffix}").write_text(text)
    return load_movielens(path, test_fraction=0.5, seed=1)


def test_movielens_joins_users_and_genres(tmp_path):
    pairs = [(user, item, rating) for user in (9, 10) for item, rating in ((1, 5), (2, 3), (3, 4))]
    parts = movielens(tmp_path, "".join(f"{u}\t{i}\t{r}\t0\r\n" for u, i, r in pairs))
    assert [part.num_rows for part in parts] == [3, 3]
    assert [(f.name, f.vocabulary_size, f.hotness) for f in parts[0].features] == [
        ("user_id", 2, 1),
        ("item_id", 3, 1),
        ("genres", 2, None),
        ("age", 7, 1),
        ("gender", 2, 1),
        ("occupation", 2, 1),
    ]
    seen = set()
    for part in parts:
        columns = part.take(np.arange(3))
        genres = columns.features["genres"]
        for row in range(3):
            user, item = columns.features["user_id"][row], columns.features["item_id"][row]
            seen.add((user, item))
            bag = genres.values[genres.row_splits[row] : genres.row_splits[row + 1]].tolist()
            assert bag == [[0, 1], [], [1]][item]
            # Tokens are numbered in sorted order: user "10" comes before "9".
            assert columns.features["age"][row] == [6, 0][user]
            assert columns.features["gender"][row] == user and columns.features["occupation"][row] == 1 - user
            assert columns.labels[row] == [1, 0, 1][item]
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("ratings", "text"),
    [
        ("9\t1\t5\t0\n8\t1\t5\t0\n", r"inter:3: the user must be in the .user file. Received: '8'"),
        ("9\t7\t5\t0\n", r"inter:2: the item must be in the .item file. Received: '7'"),
        ("9\t1\tgood\t0\n", r"inter:2: rating must be a number. Received: 'good'"),
        ("", r"inter: the file must have at least one rating after its header"),
        ("9\t1\tnan\t0\n", r"inter:2: rating must be a number. Received: 'nan'"),
        ("9\t1\t5\n", r"inter:2: a row must have 4 fields. Received: 3"),
    ],
)
def test_movielens_names_a_bad_line(tmp_path, ratings, text):
    with pytest.raises(ValueError, match=text):
        movielens(tmp_path, ratings)


def test_libfm_fields_start_at_zero_over_all_files(tmp_path):
    (tmp_path / "a").write_text("1 3:1 10:1\r\n-1 4:1 12:1.0\r\n\r\n")
    (tmp_path / "b").write_text("0 2:1 11:1")
    train, test = load_libfm(tmp_path / "a", tmp_path / "b", fields=("user", "item"))
    assert [(f.name, f.vocabulary_size) for f in train.features] == [("user", 3), ("item", 3)]
    assert train.features == test.features
    columns = train.take(np.arange(2))
    assert columns.features["user"].tolist() == [1, 2] and columns.features["item"].tolist() == [0, 2]
    assert columns.labels.tolist() == [1, 0]
    assert test.take(np.arange(1)).features["item"].tolist() == [1] and test.labels.tolist() == [0]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("2 1:1 2:1", r"a:2: the label must be 1, -1 or 0. Received: '2'"),
        ("1 1:1", r"a:2: a row must have 2 fields after the label. Received: 1"),
        ("1 1:1 2:0.5", r"a:2: a field must be 'id:1' \(one id of weight 1\). Received: '2:0.5'"),
        ("1 -1:1 2:1", r"a:2: a field must be 'id:1' .* Received: '-1:1'"),
    ],
)
def test_libfm_names_a_bad_line(tmp_path, line, text):
    (tmp_path / "a").write_text(f"1 1:1 2:1\n{line}\n")
    with pytest.raises(ValueError, match=text):
        load_libfm(tmp_path / "a", fields=("user", "item"))


def test_libfm_needs_a_row(tmp_path):
    (tmp_path / "a").write_text("\n")
    with pytest.raises(ValueError, match="`paths` must name at least one file with a row"):
        load_libfm(tmp_path / "a")


HEADER = "userID\tartistID\tweight\n"


def test_weighted_rows_leave_the_asked_artist_out(tmp_path):
    pairs = [("u", "a", 3), ("v", "b", 0), ("u", "c", 7), ("w", "d", 1)]
    (tmp_path / "plays").write_text(HEADER + "".join(f"{u}\t{a}\t{n}\n" for u, a, n in pairs))
    table = WeightedInteractions(tmp_path / "plays", seed=3)
    assert table.num_rows == 8 and [f.weighted for f in table.features] == [True, False]
    columns = table.take(np.arange(8))
    history, weights = columns.features["history"], columns.features["history_weights"]
    assert columns.labels.tolist() == [1, 0] * 4
    assert columns.features["artist"][::2].tolist() == [0, 2, 1, 3]
    assert history.lengths.tolist() == weights.lengths.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert history.values.tolist() == [2, 2, 0, 0]
    np.testing.assert_allclose(weights.values, np.log1p([7, 7, 3, 3]), rtol=1e-6)
    owned = [{0, 2}, {0, 2}, {1}, {3}]
    assert all(a not in own for a, own in zip(columns.features["artist"][1::2], owned, strict=True))
    again = WeightedInteractions(tmp_path / "plays", seed=3).take(np.array([5, 0]))
    assert again.features["artist"].tolist() == columns.features["artist"][[5, 0]].tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "user\tartist\tweight\n",
            r"plays:1: the header must be userID artistID weight. Received: 'user artist weight'",
        ),
        (HEADER + "1\t2\t3\n1\t2\n", r"plays:3: a row must have 3 fields. Received: 2"),
        (HEADER + "1\t2\tmany\n", r"plays:2: weight must be a number. Received: 'many'"),
        (HEADER + "1\t2\t-1\n", r"plays:2: weight must not be negative. Received: '-1'"),
        (HEADER + "1\t2\t3\n1\t2\t4\n", r"plays:3: a pair must be given once. Received: '1', '2' again"),
        (HEADER + "1\t2\t3\n1\t3\t4\n", "Every user must lack at least one artist"),
    ],
)
def test_weighted_names_a_bad_line(tmp_path, text, message):
    (tmp_path / "plays").write_text(text)
    with pytest.raises(ValueError, match=message):
        WeightedInteractions(tmp_path / "plays")


def test_text_that_is_no_utf8_is_named(tmp_path):
    (tmp_path / "plays").write_bytes(HEADER.encode() + b"\xff\t1\t1\n")
    with pytest.raises(ValueError, match="plays: the file must be UTF-8 text"):
        WeightedInteractions(tmp_path / "plays")

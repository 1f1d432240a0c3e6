"""Command lines to options, options to a config and back."""

import json
import subprocess
import sys

import pytest

from distributed_embeddings.cli.main import parse, run, split_program
from distributed_embeddings.cli.options import DataOptions, TrainOptions, to_dict, train_options
from distributed_embeddings.cli.presets import PRESETS, find_format, resolve


def test_config_round_trip():
    options = resolve(parse(["train", "--data", "a.tsv", "--top-mlp", "8", "4", "--run-dir", "runs/x"]))
    assert train_options(json.loads(json.dumps(to_dict(options)))) == options


def test_unknown_config_field_is_an_error_naming_it():
    with pytest.raises(ValueError, match=r"DataOptions.*\['colour'\]"):
        train_options({"inputs": {"colour": 1}})


def test_options_beside_a_preset_count():
    plain = parse(["train", "--preset", "demo"])
    assert plain == PRESETS["demo"]
    changed = parse(["train", "--preset=demo", "--rows", "77"])
    assert changed.inputs.rows == 77
    assert changed.inputs.valid_rows == plain.inputs.valid_rows


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("synthetic", "synthetic"),
        ("day_{0,1}.tsv.gz", "criteo"),
        ("a.libfm", "libfm"),
        ("user_artists.dat", "weighted"),
    ],
)
def test_format_by_name(data, expected):
    assert find_format(DataOptions(data=data)) == expected


def test_format_of_a_movielens_directory(tmp_path):
    (tmp_path / "ml-100k.inter").write_text("")
    assert find_format(DataOptions(data=str(tmp_path))) == "movielens"


def test_resolved_options_have_no_gap():
    for kind in ("criteo", "synthetic", "libfm", "movielens", "weighted"):
        resolved = resolve(TrainOptions(inputs=DataOptions(format=kind)))
        assert None not in (resolved.batch_size, resolved.epochs, resolved.optimizer, resolved.learning_rate)
        assert None not in (resolved.network.model, resolved.network.embedding_dim, resolved.network.top_mlp)


def test_program_behind_the_dashes_is_not_parsed():
    own, program = split_program(["launch", "-n", "3", "--", "python", "x.py", "--help", "--", "-n"])
    assert own == ["launch", "-n", "3"]
    assert program == ["python", "x.py", "--help", "--", "-n"]
    assert parse(own).workers == 3


def test_print_config_prints_what_counts(capsys):
    assert run(["train", "--print-config", "--data", "x.tsv", "--workers", "2", "--seed", "9"]) == 0
    config = json.loads(capsys.readouterr().out)
    assert config["seed"] == 9
    assert config["inputs"]["format"] == "criteo"
    assert config["network"]["model"] == "dlrm"
    assert config["batch_size"] > 0


def test_command_line_answers_without_tensorflow():
    code = (
        "import sys; from distributed_embeddings.cli.main import run; "
        "run(['train', '--print-config']); "
        "run(['launch', '-n', '1', '--', sys.executable, '-c', 'pass']); "
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

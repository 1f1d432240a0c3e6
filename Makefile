# Two commands: `make demo` and `make test`. Both set everything up in .venv on a machine with python3, gcc and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TYPED := src/distributed_embeddings/planner src/distributed_embeddings/comm src/distributed_embeddings/data

.PHONY: setup demo demo-long test test-all lint bench clean

setup: $(VENV)/.stamp

# The stamp is newer than whatever decides what must be installed.
$(VENV)/.stamp: pyproject.toml CMakeLists.txt $(wildcard csrc/*/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet 'tensorflow-cpu==2.21.*'
	$(BIN)/python -m pip install --quiet --editable '.[cpu,dev]'
	touch $@

demo: setup
	$(BIN)/demb train --workers 2 --preset demo

demo-long: setup
	$(BIN)/demb train --workers 2 --preset demo-long

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -m "not slow"

test-all: lint
	$(BIN)/python -m pytest

# Each prints one JSON object; benchmarks/reports/ keeps what was measured.
bench: setup
	$(BIN)/python benchmarks/bench_row_update.py
	$(BIN)/python benchmarks/bench_criteo.py
	$(BIN)/demb launch -n 2 -- $(CURDIR)/$(BIN)/python benchmarks/bench_comm.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis runs

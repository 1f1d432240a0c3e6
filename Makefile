# Two commands: `make demo` and `make test`. Both set everything up in .venv on a machine with python3, gcc and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
, := ,
TYPED := src/distributed_embeddings/planner src/distributed_embeddings/comm src/distributed_embeddings/data

.PHONY: setup kernels demo demo-long lint test test-core test-all sanitize fuzz bench clean

setup: kernels

# The stamp is newer than whatever decides what must be installed. The kernels are `make kernels`' own: an editable
# install that builds them starts from nothing every time.
$(VENV)/.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet 'tensorflow-cpu==2.21.*'
	$(BIN)/python -m pip install --quiet --config-settings=cmake.define.DEMB_KERNELS=OFF \
		--config-settings=build-dir=build/editable --editable '.[cpu,dev]'
	touch $@

# Compiles what changed in csrc/ against the installed TensorFlow, and puts the library where the editable install
# looks for it.
kernels: $(VENV)/.stamp
	@mkdir -p build
	@$(BIN)/cmake -S . -B build/kernels -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DDEMB_PYTHON=$(CURDIR)/$(BIN)/python >build/kernels.log
	@$(BIN)/cmake --build build/kernels
	@$(BIN)/cmake --install build/kernels --prefix \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"

demo: setup
	$(BIN)/demb train --workers 2 --preset demo

demo-long: setup
	$(BIN)/demb train --workers 2 --preset demo-long

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports

test: lint test-core
	$(BIN)/python -m pytest -m "not slow"

test-all: lint test-core
	$(BIN)/python -m pytest

# csrc/core alone, without TensorFlow: $(call core,FOLDER,SANITIZERS) configures and builds its tests and fuzz target.
core = mkdir -p build && $(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	-DDEMB_WITH_TENSORFLOW=OFF -DDEMB_SANITIZE=$(2) >build/core.log && $(BIN)/cmake --build build/$(1)
CTEST := $(BIN)/ctest --output-on-failure --test-dir

# With the flags of the library; portable and AVX2, and their bits compared.
test-core: $(VENV)/.stamp
	@$(call core,core,)
	@$(CTEST) build/core

# The same under each sanitizer.
sanitize: $(VENV)/.stamp
	$(call core,sanitize/address,address$(,)leak) && $(CTEST) build/sanitize/address
	$(call core,sanitize/undefined,undefined) && $(CTEST) build/sanitize/undefined
	$(call core,sanitize/thread,thread) && $(CTEST) build/sanitize/thread

# Longer than in `make sanitize`: FUZZ_RUNS inputs from FUZZ_SEED on, under the address and undefined sanitizers.
FUZZ_RUNS ?= 200000
FUZZ_SEED ?= 1
fuzz: $(VENV)/.stamp
	$(call core,fuzz,address$(,)undefined) --target fuzz_bags
	build/fuzz/fuzz_bags -runs=$(FUZZ_RUNS) -seed=$(FUZZ_SEED)

# Each prints one JSON object; benchmarks/reports/ keeps what was measured.
bench: setup
	$(BIN)/python benchmarks/bench_row_update.py
	$(BIN)/python benchmarks/bench_criteo.py
	$(BIN)/demb launch -n 2 -- $(CURDIR)/$(BIN)/python benchmarks/bench_comm.py

# Peers have an environment of their own. --no-deps: torchrec asks for the CUDA build of FBGEMM, which breaks the CPU
# one; the list holds all that import needs.
.PHONY: bench-peers bench-ops bench-train
bench-peers: .venv-peers/.stamp

.venv-peers/.stamp: benchmarks/peers/requirements.txt
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --no-deps --requirement $<
	.venv-peers/bin/python -c 'import torch, fbgemm_gpu, torchrec; print("peers:", torch.__version__, torchrec.__version__)'
	touch $@

# Half an hour. The whole grid takes hours: demb bench ops --suite issue --resume
bench-ops: setup bench-peers
	$(BIN)/demb bench ops --suite quick

# DLRM end to end, minutes. The size ladder: demb bench train --model tiny
bench-train: setup bench-peers
	$(BIN)/demb bench train

clean:
	rm -rf $(VENV) .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis runs

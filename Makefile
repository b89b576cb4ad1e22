# demo: a small model end to end on this machine; test: all checks; see README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Of ten thousand modules that come along a few hundred are used: Python compiles those itself, and
# compiling them all would be half of the install.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile
# Empty is unset: compiled once at first use, and not anew by each of a hundred processes.
export PYTHONDONTWRITEBYTECODE :=
TORCH := torch==2.13.0
KERNELS := omruntime/native/libomserve_native.so.1

.PHONY: demo test unit native lint imports bench fuzz-om fuzz-grpc fuzz-http soak proto clean

# What has nothing to do with each other is made side by side, by a make of its own, so that the goals
# of a command line still follow each other: pip and the compiler keep to one core most of the time.
demo:
	$(MAKE) --jobs 2 $(VENV)/.installed
	$(BIN)/python -m demo.demo

# Lint uses what the workers leave of the cores while they wait.
test:
	$(MAKE) --jobs 2 lint unit

# One worker for each core and one for the time in which they wait. Two for each core take longer:
# each sets up what files share for itself. tests/conftest.py says which tests stay together.
unit: $(VENV)/.installed-dev native imports
	$(BIN)/pytest --numprocesses $$(($$(nproc) + 1)) --no-loadscope-reorder

# The native kernels anew, after a change of their sources; installing builds them too.
native: $(KERNELS)

$(KERNELS): $(VENV)/.created setup.py $(shell find omruntime/native/src -type f)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch -c $@

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto

# What most tests load, once: else each worker of the tests would compile it for itself.
imports: $(VENV)/.installed-dev
	$(BIN)/python -c 'import export.build'

bench: $(VENV)/.installed-dev
	$(BIN)/python -m bench.run
	$(BIN)/python -m bench.host_overhead
	$(BIN)/python -m bench.sampling
	$(BIN)/python -m bench.replay
	$(BIN)/python -m bench.constraints
	$(BIN)/python -m bench.peers .cache/demo/smollm2 --gguf .cache/weights/SmolLM2-135M-Instruct.Q4_1.gguf --rounds 1 --share 0.1

# An hour of churn, dropped streams and a long silence, then longer runs of what the test suite does at a smaller count.
SOAK_S ?= 3600
soak: $(VENV)/.installed-dev
	$(BIN)/python -m bench.soak --seconds $(SOAK_S)
	$(BIN)/python -m bench.wire_soak
	SOAK_FACTOR=10 $(BIN)/pytest tests/omruntime/test_scheduler_machine.py tests/e2e/test_simulated_card.py

fuzz-om: $(VENV)/.installed-dev
	$(BIN)/python -m tests.fuzz_om --count 100000

# 10,000 calls of each RPC; about ten minutes on two cores.
fuzz-grpc: $(VENV)/.installed-dev
	$(BIN)/python -m tests.fuzz_grpc --count 10000

# About a quarter of an hour on two cores.
fuzz-http: $(VENV)/.installed-dev
	$(BIN)/python -m tests.fuzz_http --count 10000

# Writes server/pb/ anew; a test compares it with proto/.
proto: $(VENV)/.installed-dev
	$(BIN)/python -m grpc_tools.protoc -Iserver/pb=proto/omserve/v1 \
		--python_out=. --pyi_out=. --grpc_python_out=. proto/omserve/v1/*.proto

clean:
	rm -rf $(VENV) .cache build dist *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade 'pip>=25.1' 'setuptools>=77'
	touch $@

# torch goes first and alone, so that a CPU build that pip already knows of is taken as it is.
$(VENV)/.torch: $(VENV)/.created
	$(INSTALL) '$(TORCH)'
	touch $@

# Without isolation the build finds the kernels made, by the setuptools above.
$(VENV)/.installed: $(VENV)/.torch pyproject.toml | $(KERNELS)
	$(INSTALL) --no-build-isolation --editable '.[demo]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.torch pyproject.toml | $(KERNELS)
	$(INSTALL) --no-build-isolation --editable '.[demo]' --group dev
	touch $@ $(VENV)/.installed

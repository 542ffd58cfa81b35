# Checkmate. `make run-testbed` and `make test` set up all that they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

SWITCH ?= softswitch
FABRIC ?= auto
ITERATIONS ?= 20
RANKS ?= 4
MTU ?=
SEED ?= 0
OUT ?= out/testbed
JOB ?= examples/digits.yaml
PYTEST_ARGS ?= -n auto --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help env run-testbed test lint types layers check p4 proto bench lock clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo "Variables of run-testbed: SWITCH=softswitch|bmv2 FABRIC=auto|inproc|mininet ITERATIONS=20 RANKS=4 MTU= SEED=0 OUT=out/testbed JOB=examples/digits.yaml"

env: $(VENV)/.installed ## Create the environment (exact versions of requirements.lock)

# The stamp is written last: an interrupted installation is done again.
$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: set PYTHON="; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "installing python3-venv"; apt-get -q update && apt-get -q install -y python3-venv; $(PYTHON) -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run-testbed: env ## Train, and prove that the shadow holds every iteration's checkpoint
	$(BIN)/checkmate testbed run $(JOB) --switch $(SWITCH) --fabric $(FABRIC) --iterations $(ITERATIONS) \
	  --ranks $(RANKS) $(if $(MTU),--mtu $(MTU)) --seed $(SEED) --out $(OUT)

test: env ## Run all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: env ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env ## Check types (strict)
	$(BIN)/mypy

layers: env ## Check that the layers import only what they may
	$(BIN)/lint-imports

check: lint types layers ## Style, types, layers, stale artifacts
	$(BIN)/python -m p4src.compile --check

p4: env ## Recompile the data plane (where p4c is on PATH) and regenerate the shared names
	$(BIN)/python -m p4src.compile

proto: env ## Regenerate the side channel's messages and stubs
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. jobspec/sidechannel/side_channel.proto

bench: env ## Run all benchmarks, a table each
	@for file in bench/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean: ## Remove the environment and all output
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis

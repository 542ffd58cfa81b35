# Checkmate. `make run-testbed` and `make test` set up everything they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

SWITCH ?= softswitch
FABRIC ?= auto
ITERATIONS ?= 20
RANKS ?=
MTU ?=
SEED ?= 0
OUT ?= out/testbed
JOB ?= examples/digits.yaml

SHELL_VENV ?= $(or $(CHECKMATE_SHELL_VENV),.venv-shell)
TARGET ?= 127.0.0.1:9559
DEVICE_ID ?= 1
ELECTION_ID ?= 0,0
PUSH ?=
PIPELINE := p4src/build/checkmate.p4info.txtpb,p4src/build/checkmate.json
PYTEST_ARGS ?= -n auto --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help env run-testbed acceptance test explore lint types layers check p4 tofino proto bench fuzz fuzz-inputs shell shell-env clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo "Variables of run-testbed: SWITCH=softswitch|bmv2 FABRIC=auto|inproc|mininet ITERATIONS=20 RANKS= MTU= SEED=0 OUT=out/testbed JOB=examples/digits.yaml"
	@echo "Variables of acceptance: QUICK=1 (the short form: simulation, one seed) SEEDS=3 OUT=out/acceptance"
	@echo "Variables of shell: TARGET=127.0.0.1:9559 DEVICE_ID=1 ELECTION_ID=0,0 (read-only) PUSH=1 (push the program first)"

env: $(VENV)/.installed ## Create the environment (exact versions of requirements.lock)

# The stamp is written last, so an interrupted installation is repeated.
$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: set PYTHON="; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "installing python3-venv"; apt-get -q update && apt-get -q install -y python3-venv; $(PYTHON) -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run-testbed: env ## Train, and check the shadow's checkpoint of every iteration (as root it installs Mininet)
	@$(if $(filter-out inproc,$(FABRIC)),echo "As root: Mininet is installed (apt-get) if it is missing; FABRIC=inproc does not need it",:)
	$(BIN)/checkmate testbed run $(JOB) --switch $(SWITCH) --fabric $(FABRIC) $(if $(filter-out inproc,$(FABRIC)),--install) --iterations $(ITERATIONS) \
	  $(if $(RANKS),--ranks $(RANKS)) $(if $(MTU),--mtu $(MTU)) --seed $(SEED) --out $(OUT)

acceptance: OUT = out/acceptance
acceptance: env ## Inject every fault of the recovery contract, alone and mixed, and judge the outcome
	$(BIN)/checkmate acceptance $(if $(filter-out 0,$(QUICK)),--quick) $(if $(SEEDS),--seeds $(SEEDS)) --out $(OUT)

test: env ## Run all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

explore: env ## Run the property tests with new random examples in every run (`make test` has fixed ones)
	CHECKMATE_HYPOTHESIS=explore $(BIN)/python -m pytest $(PYTEST_ARGS) -m hypothesis

lint: env ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env ## Check types (strict)
	$(BIN)/mypy

layers: env ## Check the import layers
	$(BIN)/lint-imports

check: lint types layers ## Style, types, layers, stale artifacts
	$(BIN)/python -m p4src.compile --check

p4: env ## Recompile the data plane (if p4c is on PATH) and regenerate the shared names
	$(BIN)/python -m p4src.compile

tofino: env ## Compile for Tofino 1 and 2 (if a p4c with that backend is on PATH), check the result, write docs/tofino.md
	$(BIN)/python -m p4src.tofino

proto: env ## Regenerate the side channel's messages and stubs
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. checkmate_common/sidechannel/side_channel.proto

bench: OUT = out/bench
bench: env ## Measure the speed of the data paths as ratios within one run (QUICK=1: small and short; OUT=out/bench)
	$(BIN)/python -m bench.run $(if $(filter-out 0,$(QUICK)),--quick) --out $(OUT)

fuzz: env ## Send random packets through the embedded switch and BMv2, and compare (PACKETS=20000 SEED=0)
	$(BIN)/python -m tests.switch_contract.fuzz --packets $(or $(PACKETS),20000) --seed $(SEED)

fuzz-inputs: env ## Feed damaged input: files, packets, calls (MINUTES=1 SEED=0; SURFACE= COUNT= FIRST=)
	$(BIN)/python -m tests.fuzz_inputs $(if $(COUNT),--count $(COUNT)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(SURFACE),--surface $(SURFACE)) --seed $(SEED) $(if $(FIRST),--first $(FIRST))

shell-env: $(SHELL_VENV)/.installed ## Create p4runtime-shell's own environment (exact versions of requirements-shell.lock)

# Its jedi does not support Python 3.11, and the Tab key would print a traceback, so IPython completes without it.
$(SHELL_VENV)/.installed: requirements-shell.lock
	@test -x $(SHELL_VENV)/bin/python || $(PYTHON) -m venv $(SHELL_VENV) || \
	  { echo "installing python3-venv"; apt-get -q update && apt-get -q install -y python3-venv; $(PYTHON) -m venv --clear $(SHELL_VENV); }
	$(SHELL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-shell.lock
	@mkdir -p $(SHELL_VENV)/etc/ipython && echo 'c.Completer.use_jedi = False' > $(SHELL_VENV)/etc/ipython/ipython_config.py
	@touch $@

shell: shell-env ## Open p4runtime-shell on the switch at TARGET=HOST:PORT; read-only unless ELECTION_ID= is set
	$(SHELL_VENV)/bin/python -m p4runtime_sh --grpc-addr $(TARGET) --device-id $(DEVICE_ID) --election-id $(ELECTION_ID) \
	  $(if $(PUSH),--config $(PIPELINE))

clean: ## Remove the environment and all output
	rm -rf $(VENV) .venv-shell out .pytest_cache .mypy_cache .ruff_cache .hypothesis

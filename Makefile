# The same commands on a fresh machine, on a developer's and in CI. `make setup` needs python3 (3.11 or newer);
# as root on Debian or Ubuntu it installs whatever else is missing, a container engine included.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
SEEDS ?= 200
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.done
GO_SOURCES := $(wildcard sandbox_images/boxd/*.go sandbox_images/boxd/*/*.go sandbox_images/boxd/go.mod)
# Fast and pure first, what kills processes last: a broken unit test is seen before minutes of real containers.
TEST_FOLDERS := $(wildcard $(addprefix tests/,unit conformance simulation integration crash e2e))

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

# ------------------------------------------------------------------ set-up

.PHONY: setup
setup: $(STAMPS)/boxd ## Make this machine ready: .venv, boxd, engine, images (a repeat takes a second)
	@$(BIN)/python -m sandkeeper.cli.setup

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) is older than 3.11; name a newer one: make setup PYTHON=python3.12" >&2; exit 1; }
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing python3-venv"; \
	    apt-get update -qq; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv >/dev/null; \
	  else \
	    echo "error: $(PYTHON) has no venv module; on Debian: sudo apt-get install python3-venv" >&2; exit 1; \
	  fi; \
	fi
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: $(STAMPS)/venv pyproject.toml constraints.txt hatch_build.py
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server,dev]'
	@touch $@

$(STAMPS)/boxd: $(STAMPS)/packages $(GO_SOURCES)
	@$(BIN)/python hatch_build.py
	@touch $@

# ------------------------------------------------------------------ use

.PHONY: demo
demo: setup ## Watch a coordinator do its job while things are killed under it
	$(BIN)/sandkeeper demo

.PHONY: test
test: setup ## Run the whole test suite
	$(BIN)/python -m pytest -m 'not soak' --durations=15 $(TEST_FOLDERS)

.PHONY: soak
soak: setup ## Run the tests that take minutes
	$(BIN)/python -m pytest -m soak $(TEST_FOLDERS)

.PHONY: simulate
simulate: $(STAMPS)/packages ## Run SEEDS=200 schedules of the simulation
	SANDKEEPER_SIMULATION_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/simulation

.PHONY: bench
bench: setup ## Measure the figures of docs/performance.md
	$(BIN)/python -m tests.bench

.PHONY: lint
lint: $(STAMPS)/packages ## Check format, rules, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict controller hatch_build.py
	$(BIN)/lint-imports --no-logo
	cd sandbox_images/boxd && GOFLAGS= GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0 GOOS=linux $(CURDIR)/$(BIN)/go vet ./...
	@unformatted="$$("$$($(BIN)/go env GOROOT)/bin/gofmt" -l sandbox_images/boxd)"; \
	if [ -n "$$unformatted" ]; then echo "gofmt would change: $$unformatted" >&2; exit 1; fi

.PHONY: clean
clean: ## Remove what make made here (the engine, images and the state folder stay)
	rm -rf $(VENV) dist controller/sandkeeper/_boxd .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find controller tests -name __pycache__ -type d -prune -exec rm -rf {} +

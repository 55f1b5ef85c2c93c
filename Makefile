# Every target works from a fresh clone: it makes .venv first when that is missing or older than the locks.
# Variables: PYTHON=python3.12 (which one makes .venv), SEEDS=2000, JOBS=2, ARGS="--kills 50 --seed 7" (for run),
# ROUNDS=3, CASES="agent first", RECORD=1 (for bench).

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
JOBS  ?= 2
SEEDS ?= 2000
ARGS  ?=
ROUNDS ?= 3
CASES ?=
RECORD ?=

PYTEST := $(PY) -m pytest
# The same run on every machine: sets and dicts of strings iterate alike.
export PYTHONHASHSEED ?= 0
# Bytecode is kept: suites that start many processes would compile everything in each of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run check format test crash crash-short simulate bench-quick bench bench-bars exports lock clean

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1#\2/p' Makefile | awk -F'#' '{printf "%-20s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with the locked packages (cheap the second time)

$(STAMP): pyproject.toml requirements/dev.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh $(VENV)
	@touch $@

run: $(STAMP) ## the main job: an agent that is killed again and again and loses nothing
	$(VENV)/bin/perdure demo $(ARGS)

check: $(STAMP) ## lint, types, layers, fast tests: under a minute
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(VENV)/bin/lint-imports --no-logo
	@said=$$(mktemp); $(VENV)/bin/basedpyright --pythonpath $(PY) >$$said 2>&1 & types=$$!; \
	$(PYTEST) -q -n $(JOBS) -m "not slow and not crash"; tests=$$?; \
	wait $$types; typed=$$?; cat $$said; rm -f $$said; \
	[ $$tests -eq 0 ] || echo "the tests failed, see above"; \
	[ $$typed -eq 0 ] && exit $$tests

format: $(STAMP) ## rewrite the tree as check wants it
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

test: $(STAMP) ## every test but the long suites: under ten minutes
	$(PYTEST) -q -n $(JOBS) --durations=10 -m "not crash"

crash: $(STAMP) ## SIGKILL at every write and sync, and inside every effect
	$(PYTEST) -q -n $(JOBS) -m crash --timeout=600 --crash=full tests/crash

crash-short: $(STAMP) ## the same at a sample of the places
	$(PYTEST) -q -n $(JOBS) -m crash --timeout=300 --crash=short tests/crash

simulate: $(STAMP) ## SEEDS simulated runs under a seeded scheduler
	$(PY) -m perdure.testing.simulation --seeds $(SEEDS)

bench-quick: $(STAMP) ## the bars of speed: under 50 s, exits 1 when one is missed
	$(PY) benchmarks/quick.py

bench: $(STAMP) ## perdure beside its peers: ROUNDS=3, CASES="agent first" for some, RECORD=1 for docs/benchmarks
	$(PY) benchmarks/peers/run.py --rounds $(ROUNDS) --cases "$(CASES)" $(if $(RECORD),--record)

bench-bars: $(STAMP) ## only what the bars against the peers need; exits 1 when one is missed
	$(PY) benchmarks/peers/run.py --rounds $(ROUNDS) --cases bars

exports: $(STAMP) ## write the snapshot of public names and signatures anew
	$(PY) tests/architecture/test_exports.py

lock: $(STAMP) ## write the locks from pyproject.toml (ARGS=--upgrade for newer releases)
	$(PY) -m pip install --quiet --require-hashes --no-deps --requirement requirements/lock.txt
	sh scripts/lock.sh $(PY) $(ARGS)

clean: ## remove what make made
	rm -rf $(VENV) build dist .bench .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

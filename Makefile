# Every target makes the environment it needs. On a fresh machine Python 3.11+ and make are enough.
# Variables: PYTHON=python3.12 (which interpreter), VENV=.venv (where), ARGS="-k lease" (more for pytest).

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo dev test test-extra test-matrix lint format bench chaos coverage docs web pixdict proto screenshots lock clean

VENV ?= .venv
PYTHON ?=
ARGS ?=
# How many tests at once. More than two cores can do: many wait for processes, leases and seconds, so that three take a
# third longer than five.
WORKERS ?= 5

PY := $(VENV)/bin/python
CODE := $(wildcard src tests bench chaos examples tools)
FIND_PYTHON := $(if $(PYTHON),echo $(PYTHON),tools/find-python)
BASE_LOCKS := requirements/base.lock requirements/build.lock
DEV_LOCKS := requirements/dev.lock requirements/build.lock

# What must behave the same on every Python: the deterministic loop, turns and replay, orders by seed, and how programs
# fork and end.
MATRIX := 3.11 3.12 3.13
MATRIX_TESTS ?= tests/engine tests/replay tests/flows/test_journals.py tests/properties tests/unit tests/faces tests/testing/test_seeds.py

# Files of the tests lie in memory where there is room: syncing them to a disk proves nothing, kills and faults do.
QUICK := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 2000000 { print $$6 }')
test test-on-%: export PYTEST_DEBUG_TEMPROOT := $(QUICK)
# PostgreSQL's files too: copying a database in memory takes a tenth of the time. Its programs may lie beside them.
test test-on-%: export TMPDIR := $(shell grep -qs ' /dev/shm .*noexec' /proc/mounts || echo $(QUICK))
# Hundreds of Python processes: each would compile all that it imports.
test test-on-%: export PYTHONDONTWRITEBYTECODE :=

# All moments of every sweep and ten times the examples: make test LONG=1.
test test-on-%: export BATUTA_TEST_LONG := $(LONG)

# What must also hold when every run is rebuilt from its journal before every turn: all that runs workflows. How that is
# done does not depend on where the journal lies; the stores' part of it is tests/stores/test_replay.py. Tests of jobs,
# quotas, bad input and processes have nothing to replay; sweeps that kill workers and properties replay by themselves.
REPLAYED := "(not postgres and not sqlite and not sweep and not killed and not test_job and not own_transactions \
	and not quotas and not retention and not processes and not nothing_grows and not under_load and not bad_input \
	and not timedeltas) or test_replay"
REPLAY_TESTS ?= tests/engine tests/replay/test_changed_code.py tests/stores/test_replay.py

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.base ## kill a worker in the middle of an order and watch another finish it
	$(PY) -m batuta demo

dev: $(VENV)/.dev ## a worker, the API and the dashboard with sample workflows, at http://127.0.0.1:8288/
	$(PY) -m batuta dev

test: $(VENV)/.dev ## all tests, then again those of workflows with every run replayed
	$(PY) -m pytest -n $(WORKERS) --dist worksteal --ignore=tests/extra $(ARGS)
	BATUTA_ALWAYS_REPLAY=1 $(PY) -m pytest -n $(WORKERS) --dist worksteal -m "not chaos" -k $(REPLAYED) $(REPLAY_TESTS) $(ARGS) || [ $$? -eq 5 ]

test-extra: $(VENV)/.dev ## tests that need Debian packages (installed by name; fails when it can't)
	tools/test-extra $(PY)

test-matrix: $(MATRIX:%=test-on-%) ## loop and replay tests on each supported Python

test-on-%: .venv-%/.dev
	.venv-$*/bin/python -m pytest -n $(WORKERS) -m "not chaos" $(MATRIX_TESTS) $(ARGS)

lint: $(VENV)/.dev ## ruff and mypy
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy $(filter-out tools,$(CODE))

format: $(VENV)/.dev ## let ruff format and repair
	$(PY) -m ruff format $(CODE)
	$(PY) -m ruff check --fix $(CODE)

bench: $(VENV)/.dev .venv-bench/.bench ## measure against the bare database and DBOS (CHECK=1 compares with the bars, FULL=1 takes long)
	BENCH_PEER_PYTHON=.venv-bench/bin/python $(PY) -m bench $(if $(CHECK),--check) $(if $(FULL),--full)

chaos: $(VENV)/.dev ## kill, stop and starve workers and databases; nothing may be lost (LONG=1 for more)
	$(PY) -m chaos $(if $(LONG),--long)

docs: $(VENV)/.dev ## check the documentation: links, requirement table, snippets
	$(PY) -m pytest tests/docs $(ARGS)

web: ## build the dashboard into src/batuta/server/static (needs Node 20.19 or later)
	tools/web

pixdict: $(VENV)/.dev ## the Pix connector with a simulated directory, at http://127.0.0.1:8290/
	$(PY) -m pixdict dev

proto: $(VENV)/.dev ## make src/pixdict/proto from proto/
	tools/proto $(PY)

coverage: $(VENV)/.dev ## lines of pixdict that its tests run; fails below 90 %
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/coverage.lock
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -n $(WORKERS) tests/pixdict $(ARGS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

screenshots: $(VENV)/.dev ## write a picture of every page of the dashboard into docs/images
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/browser.lock
	$(PY) tools/screenshots

lock: ## make the hash-pinned requirement files again (needs uv)
	tools/lock

clean: ## remove environments, caches and build results
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.base: $(BASE_LOCKS) pyproject.toml
	tools/make-env --editable $(VENV) "$$($(FIND_PYTHON))" $(BASE_LOCKS)
	@touch $@

$(VENV)/.dev: $(DEV_LOCKS) pyproject.toml
	tools/make-env --editable $(VENV) "$$($(FIND_PYTHON))" $(DEV_LOCKS)
	@touch $(VENV)/.base $@

.PRECIOUS: .venv-%/.dev

.venv-bench/.bench: requirements/bench.lock
	tools/make-env .venv-bench "$$($(FIND_PYTHON))" requirements/bench.lock
	@touch $@

.venv-%/.dev: $(DEV_LOCKS) pyproject.toml
	tools/make-env --editable .venv-$* "$$(tools/find-python $*)" $(DEV_LOCKS)
	@touch $@

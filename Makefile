# Everything a person or a machine does with this repository. `make` alone lists it.
.DEFAULT_GOAL := help
.PHONY: help setup environment demo test every-test soak lint format docs lock clean
MAKEFLAGS += --no-print-directory
# Tests start hundreds of Python processes: without its cache each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python
UV := .venv/setup/bin/uv
PARALLEL := --numprocesses=2 --dist=loadfile --no-loadscope-reorder --maxfail=5
PACKAGES := foundation cdc eventstore projections headwater

help: ## list these commands
	@printf '\n  Headwater: one Postgres, every other view of its data\n\n'
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile
	@printf '\n  Needs Python 3.11+ and Java 17+. Afterwards: .venv/bin/headwater --help\n\n'

setup: ## build .venv and fetch the locked jars (does nothing the second time)
	@sh setup/setup.sh
	@$(PY) -m headwater.runtime.java fetch
	@$(PY) -m headwater.runtime.java archive $(if $(JAVA_HOME),--java-home '$(JAVA_HOME)')

demo: setup ## start everything, drive real traffic, build and verify every view
	@.venv/bin/headwater demo $(ARGS)

test: setup ## all checks, and tests on real components (ARGS="tests/unit/...": some tests alone)
ifdef ARGS
	@$(PY) -m pytest $(ARGS)
else
	@$(MAKE) --jobs=2 lint every-test
endif

every-test:
	@$(PY) -m pytest $(PARALLEL) -m 'not soak' --require-integration --session-timeout=4500 \
	    --cov --cov-report= --durations=15

soak: setup ## every test with every seed, the long ones too (SHARD=2/6: one of six parts)
	@$(PY) -m pytest $(PARALLEL) --matrix=full --shard=$(or $(SHARD),1/1) --durations=15

lint: environment ## style, types, module contracts
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet . || { echo 'not formatted: make format'; exit 1; }
	@$(PY) -m mypy
	@$(PY) -m mypy setup docker docs benchmarks
	@MYPYPATH=. $(PY) -m mypy --explicit-package-bases tests
	@.venv/bin/lint-imports --no-cache

format: environment ## rewrite the sources in the house style
	@$(PY) -m ruff check --fix --quiet . ; $(PY) -m ruff format .

docs: environment ## regenerate what is written from the code: blocking twins, docs/*.md, docker/config
	@$(PY) setup/twins.py
	@$(PY) docs/generate.py
	@$(PY) docker/render.py

lock: environment ## resolve the Python and Java dependencies anew (UPGRADE=1: to newer versions)
	@$(UV) --no-config pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	    --no-header $(if $(UPGRADE),--upgrade) --extra platform --group dev -o requirements.lock pyproject.toml
	@$(PY) -m headwater.runtime.java lock

clean: ## remove what setup and the tools made (never .headwater, which holds data)
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@! test -d .headwater || echo 'kept .headwater: it holds the data of a local stack'

environment:
	@sh setup/setup.sh

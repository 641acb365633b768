# make demo    train on handwritten digits: a plain PyTorch script, MindSpore does the arithmetic
# make test    lint, type check, tests, conformance ratchet
# make bench   parity, memory and speed against PyTorch on the CPU
# make clean   remove .venv
#
# Each builds .venv first, once. PYTHON=... chooses the interpreter (3.10, 3.11 or 3.12).

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help venv demo test lint bench clean

SUPPORTED := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.10 python3 python; do \
	$$p -c '$(SUPPORTED)' >/dev/null 2>&1 && echo $$p && break; done)
BIN := .venv/bin
WORKERS ?= 2

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

venv: .venv/.ok

.venv/.ok: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Expected Python 3.10, 3.11 or 3.12; found none. Install one, or: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' || { echo "Expected Python 3.10, 3.11 or 3.12; received `$(PYTHON) --version`. Use: make PYTHON=/path/to/python"; exit 1; }
	@rm -f $@
	$(PYTHON) -m venv .venv
	@echo "Installing PyTorch, MindSpore and the tools into .venv; this takes some minutes, once."
	$(BIN)/python -m pip install -qq -c constraints.txt -e ".[vision,test,dev]"
	@touch $@

demo: .venv/.ok
	$(BIN)/msadapter run --report examples/mnist.py

lint: .venv/.ok
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n $(WORKERS)
	@if [ -f tests/conformance/run.py ]; then $(BIN)/python -m tests.conformance.run --check && \
		$(BIN)/python -m tests.conformance.run --dtypes --fraction 10 --check; fi

bench: .venv/.ok
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

clean:
	rm -rf .venv

# Every command a person or CI types. All paths are relative, so the checkout may stand under any path.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
export PATH := $(CURDIR)/$(BIN):$(CURDIR)/node_modules/.bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint synth scenarios planner-report image-check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/.ready ## create .venv, install Node and the CDK command line, build the lambda asset

$(VENV)/.ready: requirements.txt lambdas/requirements.txt package.json package-lock.json
	@echo "setup: virtual environment, Node and CDK command line (about two minutes on a fresh machine)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --quiet -r requirements.txt
	@npm ci --loglevel=error --no-audit --no-fund
	@$(PY) -m stacks.asset
	@touch $(VENV)/.ready

demo: setup ## the whole job on the embedded AWS: deploy, train, report, destroy
	@$(PY) -m local.demo

test: setup ## the tests, under ten minutes on two cores
	@$(PY) -m pytest tests -n $(WORKERS) --dist loadgroup --durations=15

test-all: setup ## everything, slow products, scenarios, soak and browser checks too
	@$(PY) -m pytest tests -m "slow or not slow" -n $(WORKERS) --dist loadgroup --durations=30 --timeout=3600

lint: setup ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

synth: setup ## synthesise the stack into ./cdk.out, offline and byte-identical
	@$(PY) -m stacks.synth

scenarios: setup ## the committed matrix of faults on the embedded AWS; writes build/scenarios.json
	@$(PY) -m local.scenarios

image-check: setup ## build the Dockerfile with a real builder (buildah, as root) and run its self-test
	@bash tests/container/image_check.sh

planner-report: setup ## regenerate docs/planner.md's tables and plots
	@$(PY) -m benchmarks.planner_report

clean: ## remove what was built; .venv stays
	@rm -rf build cdk.out

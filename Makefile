# A fresh clone needs `make demo` or `make test` and nothing before it: both make .venv with the newest suitable
# Python (.ci/find-python) and again only when pyproject.toml changed (.ci/make-venv). Options for the command behind
# a target go into ARGS:  make demo ARGS='--kill-worker-at finalize'   make test ARGS='tests/unit -k lease'

SHELL := /bin/sh
VENV := .venv
ARGS :=
.DEFAULT_GOAL := help
.PHONY: help demo test lint types format check requirements venv-demo venv-dev clean

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: venv-demo ## Run the demo: one recording becomes a summary, whatever dies meanwhile
	@$(VENV)/bin/kernel-supervisor demo $(ARGS)

test: venv-dev ## Run all tests; WITHOUT=redis-server leaves out those that need a missing program
	@$(VENV)/bin/python -m pytest $(ARGS)

lint: venv-dev ## Check style and format (ruff)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

types: venv-dev ## Check types (mypy --strict)
	@$(VENV)/bin/mypy

format: venv-dev ## Rewrite the files in the project's format
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

check: lint types test ## Everything to run before a commit: lint, types, test

requirements: venv-dev ## List each requirement key with the tests that prove it, without running them
	@$(VENV)/bin/python -m pytest --req-report $(ARGS)

venv-demo:
	@.ci/make-venv $(VENV) demo

venv-dev:
	@.ci/make-venv $(VENV) dev

clean: ## Remove what is generated: environments, caches, builds (never .kernel, where the demo keeps its data)
	rm -rf .venv .venv-ci-* .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# A fresh clone needs `make demo` or `make test` and nothing before it: both make .venv with the newest suitable
# Python (.ci/find-python) and again only when pyproject.toml changed (.ci/make-venv). Options for the command behind
# a target go into ARGS:  make demo ARGS='--kill-worker-at finalize'   make test ARGS='tests/unit -k lease'

SHELL := /bin/sh
VENV := .venv
ARGS :=
MINUTES := 60
# All tests run on five workers: four for those that start real processes, which mostly wait (tests/support/workers.py).
# A selection by ARGS runs in one process, which starts sooner.
ALL_TESTS := -n 5 --max-worker-restart 0
.DEFAULT_GOAL := help
.PHONY: help demo test mutants chaos soak simulation lint types format check requirements venv-demo venv-dev clean

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: venv-demo ## Run the demo: one recording becomes a summary, whatever dies meanwhile
	@$(VENV)/bin/kernel-supervisor demo $(ARGS)

test: venv-dev ## Run all tests; WITHOUT=redis-server leaves out those that need a missing program
	@$(VENV)/bin/python -m pytest $(or $(ARGS),$(ALL_TESTS))

mutants: venv-dev ## Put each fault of the catalogue into a copy; its named test must fail (tests/mutants)
	@$(VENV)/bin/python -m tests.mutants $(ARGS)

simulation: venv-dev ## Run the engine on 2,000 simulated histories of faults (tests/simulation)
	@$(VENV)/bin/python -m tests.simulation $(or $(ARGS),--seeds 2000 --start 1)

chaos: venv-dev ## Hurt a real tree for MINUTES (60) and check every promise; a seed by ARGS='--seed 7' (tests/chaos)
	@$(VENV)/bin/python -m tests.chaos --minutes $(MINUTES) $(ARGS)

soak: venv-dev ## The same with few blows, and a watch on memory and descriptors of each process
	@$(VENV)/bin/python -m tests.chaos --minutes $(MINUTES) --soak $(ARGS)

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
	@.ci/make-venv $(VENV) demo,web

venv-dev:
	@.ci/make-venv $(VENV) dev

clean: ## Remove what is generated: environments, caches, builds (never .kernel, where the demo keeps its data)
	rm -rf .venv .venv-ci-* .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Two commands on a fresh Linux x86-64 machine with Python 3.11 or 3.12: `make demo`, `make test`.
.DEFAULT_GOAL := help
UV := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
RUN := .venv/bin
export DO_NOT_TRACK := 1

.PHONY: help setup demo test lint unit integration bench clean

help: ## What can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.tools/bin/uv:
	@echo "bringing uv into .tools"
	@python3 -m venv .tools 2>/dev/null && .tools/bin/python -m pip install -q uv \
	  || { rm -rf .tools && python3 -m pip install -q --target .tools uv; }

# Compiled once: where Python may not write its own bytecode, every process of the stack would compile 2000 files again.
setup: .venv/.synced deploy/servers/.venv/.synced ## Both environments, from their lock files

.venv/.synced: pyproject.toml uv.lock | $(filter .tools/%,$(UV))
	$(UV) sync --locked --quiet --compile-bytecode
	@touch $@

deploy/servers/.venv/.synced: deploy/servers/pyproject.toml deploy/servers/uv.lock | $(filter .tools/%,$(UV))
	$(UV) sync --locked --quiet --compile-bytecode --project deploy/servers
	@touch $@

demo: setup ## Flights of 2013 through the whole loop (ARGS="--through 2013-12-31 --json out.json")
	$(RUN)/trimtab demo $(ARGS)

test: setup lint unit integration ## Everything a change has to pass

lint: setup ## Style, types, and who may import whom
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/lint-imports
	$(RUN)/dagster definitions validate -m pipelines.definitions

unit: setup ## Fast tests and the doctests
	$(RUN)/pytest -q -m "not integration"

integration: setup ## Tests against the real servers
	$(RUN)/pytest -q -m integration

bench: setup ## Every figure that must be reached (ROOM=loop for one room, YEAR=1 for the year), into build/bench.json
	YEAR=$(YEAR) $(RUN)/python -m tests.bench $(ROOM)

clean: ## Stop the local stack and forget its data
	-$(RUN)/trimtab down
	rm -rf .trimtab build dist

# `make help` lists the commands; CI runs exactly these.
.DEFAULT_GOAL := help
.PHONY: help setup run demo test browser postgresql ha-demo check format docs web webcheck generate proto bench mutants nightly clean

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNS  := $(VENV)/.runs

# The first interpreter that is new enough; `make PYTHON=python3.12 setup` chooses another.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  \033[1m%-8s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install everything, editable: for work on Penstock itself

# What running takes, without Spark and without the tools. Node is used if it is there, for the dashboard.
$(RUNS): pyproject.toml hatch_build.py
	@$(MAKE_VENV)
	@echo "Installing Penstock into $(VENV); this is done once and takes about a minute."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[grpc,security,sql]'
	@touch $(RUNS)

MAKE_VENV = test -n "$(PYTHON)" || { echo "Penstock needs Python 3.11 or newer, with venv; none was found." >&2; exit 1; }; \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)

# Installed again only when what it depends on changed.
$(STAMP): pyproject.toml hatch_build.py
	@$(MAKE_VENV)
	@echo "Installing Penstock and its tools into $(VENV); this is done once and takes a minute or two."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(DJANGO6)
	@$(OPENAPI)
	@$(SSLYZE)
	@touch $(STAMP) $(RUNS)

# Django 6 wants Python 3.12: where the rest runs on an older one, one test uses a newer one beside it, if there is any.
DJANGO6 = $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' || \
	for name in python3.14 python3.13 python3.12 $$(ls "$$(pyenv root 2>/dev/null)"/versions/3.1[2-9]*/bin/python 2>/dev/null); do \
	$$name -m venv $(VENV)/django6 2>/dev/null && { $(VENV)/django6/bin/python -m pip install --quiet \
	--disable-pip-version-check 'django>=6' --editable .; break; }; done

# What makes a client of our OpenAPI document wants other versions of some packages than we do.
OPENAPI = $(PYTHON) -m venv $(VENV)/openapi && $(VENV)/openapi/bin/python -m pip install --quiet \
	--disable-pip-version-check 'openapi-python-client>=0.24'

# What scans the TLS of our ports wants an older cryptography than we do.
SSLYZE = $(PYTHON) -m venv $(VENV)/sslyze && $(VENV)/sslyze/bin/python -m pip install --quiet \
	--disable-pip-version-check 'sslyze>=6'

run: $(RUNS) ## start a broker on ./data: http://localhost:7711
	@$(BIN)/penstock serve --data ./data

demo: $(RUNS) ## show Penstock at work: an embedded demonstration
	$(BIN)/penstock demo

# Tests start many processes: they need not compile the same modules again and again.
test nightly: export PYTHONDONTWRITEBYTECODE :=

test: check browser postgresql ## everything CI wants: the checks, then the tests
	$(BIN)/python -m pytest --numprocesses auto

# Playwright's own downloads are not used: the package of the system has security updates.
browser: ## install Chromium for the tests, on Debian as root
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || $(INSTALL_CHROMIUM)

INSTALL_CHROMIUM = if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo "Installing chromium-headless-shell for the tests."; export DEBIAN_FRONTEND=noninteractive; \
	apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends chromium-headless-shell >/dev/null; \
	else echo "The tests need a browser; as root: apt-get install chromium-headless-shell, or chromium elsewhere." >&2; fi

postgresql: ## install PostgreSQL, PgBouncer and etcd for the tests, on Debian as root; no server is left running
	@{ command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; } && \
	PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null && command -v etcd >/dev/null || $(INSTALL_POSTGRESQL)

INSTALL_POSTGRESQL = if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo "Installing postgresql, pgbouncer and etcd-server for the tests."; export DEBIAN_FRONTEND=noninteractive; \
	apt-get update --quiet=2 && \
	apt-get install --quiet=2 --yes --no-install-recommends postgresql pgbouncer etcd-server >/dev/null; \
	else echo "The tests need PostgreSQL, PgBouncer and etcd; as root: apt-get install postgresql pgbouncer etcd-server." >&2; fi

# FAULTS="node postmaster machine etcd" does these one after the other and ends; without it, keys do.
ha-demo: setup postgresql ## three machines with Patroni, two nodes, and keys that kill: confirmed, lost: 0
	$(BIN)/python -m examples.patroni $(FAULTS)

check: setup ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup ## build the website of docs/ into build/site; every link must lead somewhere
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet && echo "open build/site/index.html"

web: setup ## build the dashboard on every change of web/, and reload the pages that show it
	@cd web && npm ci --no-audit --no-fund && node build.mjs --watch

webcheck: setup ## the types of the dashboard's sources
	@cd web && { test -d node_modules/typescript || npm ci --no-audit --no-fund; }
	@$(BIN)/python -c 'from penstock.server.http import openapi, routes; import json, sys; json.dump(openapi.document(routes.ROUTES), sys.stdout)' > web/openapi.json
	@cd web && npm run --silent check

generate: setup ## write the blocking client from the asyncio one
	$(BIN)/python -m penstock.client.generate

proto: setup ## compile protos/ after a change
	$(BIN)/python protos/compile.py

bench: setup ## measure, beside the raw limits of this machine
	$(BIN)/python -m bench

mutants: setup ## test the tests: plant deliberate faults one at a time, and show which test catches each
	$(BIN)/python -m tests.mutants.run

nightly: check browser postgresql ## the tests in their long doses, with all mutants
	PENSTOCK_DOSE=nightly $(BIN)/python -m pytest --timeout 7200

clean: ## remove what the commands above made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

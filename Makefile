# Targets set up their own virtual environment from pyproject.toml; each runs on a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test long check bench clean headers firmware

demo: $(STAMP)
	$(BIN)/python scripts/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -q -m "not slow and not long"

long: $(STAMP)
	$(BIN)/python -m pytest -q -m long

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=include:driver:firmware:device:. $(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python benchmarks/bench.py

# After a change of a header, or of the firmware's sources.
headers: $(STAMP)
	$(BIN)/python -m npu_abi._generate
	$(BIN)/python -m npu_abi._dump > tests/abi/abi.txt
	$(BIN)/python scripts/device_spec.py
firmware: $(STAMP)
	$(BIN)/python -m npu_firmware.image

$(STAMP): pyproject.toml scripts/prerequisites.sh
	@sh scripts/prerequisites.sh $(PYTHON)
	@echo "set-up 1/3: virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "set-up 2/3: packages, about 150 MB the first time (pyproject.toml says what each is for)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test,check]"
	@echo "set-up 3/3: the parts in C"
	@$(BIN)/python -c "import npu_model.native as native; native.load()"
	@touch $@

clean:
	rm -rf $(VENV) out build dist

# make demo   install into .venv and run the embedded study: two to three minutes on two cores
# make test   install into .venv and run every check
# make docs   write the generated parts of docs/ and README.md, and the site from them into build/site; committed runs are
#             analysed again, nothing is trained
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test format lint types unit docs clean

demo: $(VENV)/.installed
	$(BIN)/isotherm quickstart --output quickstart

test: lint types unit

unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy src

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/architecture_report.py
	$(BIN)/python benchmarks/cli_reference.py
	$(BIN)/python benchmarks/api_reference.py
	$(BIN)/python benchmarks/results_report.py
	$(BIN)/python benchmarks/quickstart_report.py
	$(BIN)/python benchmarks/watch_scale.py
	$(BIN)/python benchmarks/data_parallel_overhead.py
	$(BIN)/python benchmarks/fuzz_by_hypothesis.py
	$(BIN)/python benchmarks/gallery.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(f"Isotherm needs Python 3.11 or newer; this is {sys.version.split()[0]}. Set PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache

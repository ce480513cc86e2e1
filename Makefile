# Needs Python 3.11 or newer, git and make; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
DEMO := $(VENV)/.demo
INSTALLED := $(VENV)/.installed
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile

# BLAS threads of several processes at once slow each other down.
export OMP_NUM_THREADS := 1
export FLWR_TELEMETRY_ENABLED := 0
# Otherwise each of the tests' hundreds of processes would compile every module.
export PYTHONDONTWRITEBYTECODE :=

# Otherwise the theme prints where its development continues.
export NO_MKDOCS_2_WARNING := 1

.PHONY: help demo test test-times mutants matrix lint docs bench size reading papers bundle release

help:
	@echo "make demo        fit a model on three parties' columns, and on each party's own"
	@echo "make test        run all tests"
	@echo "make test-times  run all tests, and print their CPU seconds by folder"
	@echo "make mutants     change the code in 60 places in turn: a test must fail each time"
	@echo "make matrix      run the tests' first stage and the main job on each Python and flwr"
	@echo "make lint        check style and types"
	@echo "make docs        build the documentation as a site, into site/"
	@echo "make bench       run the benchmarks at a small size"
	@echo "make size        count lines, and lines of code, by folder"
	@echo "make reading     count the lines to read in order to follow a strategy"
	@echo "make bundle      build distributions, and the app for Flower's Hub, into dist/"
	@echo "make release     build the release VERSION=0.1.0, and set its tag; uploads nothing"
	@echo "make papers      measure missing figures of docs/papers; QUICK=1 takes minutes"

$(PY):
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("vfl-flower needs Python 3.11 or newer, but $(PYTHON) is %d.%d: choose another, as in make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml | $(PY)
	$(INSTALL) -e ".[demo]"
	@touch $@

$(INSTALLED): pyproject.toml | $(PY)
	$(INSTALL) -e ".[demo,dev,docs]"
	@# Compiles on all cores, unlike pip, and leaves out the tests of other packages.
	@$(PY) -W ignore -m compileall -qq -j 0 -x /tests/ $(VENV)/lib || true
	@touch $@ $(DEMO)

demo: $(DEMO)
	$(PY) -m simulations.flights_files .demo/parties
	$(VENV)/bin/vfl-flower simulate-app --num-supernodes 3 \
		--run-config simulations/flights.toml \
		--run-config 'data="$(CURDIR)/.demo/parties"' \
		--run-config 'output-dir="$(CURDIR)/.demo/runs"'
	$(PY) -m simulations.flights .demo/parties .demo/runs

test: $(INSTALLED)
	$(PY) -m pytest -n 3 --dist worksteal

test-times: $(INSTALLED)
	$(PY) -m pytest -n 3 --dist worksteal --cpu

mutants: $(INSTALLED)
	$(PY) benchmarks/mutants.py $(MUTANTS)

matrix: $(INSTALLED)
	$(PY) benchmarks/matrix.py $(MATRIX)

lint: $(INSTALLED)
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

docs: $(INSTALLED)
	$(PY) -m mkdocs build --strict

bench: $(INSTALLED)
	$(PY) benchmarks/alignment.py 5000 3
	$(PY) benchmarks/convert.py --rows 50000 a.csv one.parquet
	$(PY) benchmarks/rows.py --rows 20000 --columns 10
	$(PY) benchmarks/kernel_kmeans.py --rows 10000 --repeats 3
	$(PY) benchmarks/sparse_sum.py
	$(PY) -m simulations.ridge --quick
	$(PY) -m simulations.mufc sizes --datasets 1000 --datasets 10000

size: $(INSTALLED)
	$(PY) benchmarks/size.py

reading: $(INSTALLED)
	$(PY) benchmarks/reading.py

papers: $(INSTALLED)
	$(PY) -m simulations.papers $(if $(QUICK),--quick --output-dir .papers)

bundle: $(INSTALLED)
	$(PY) benchmarks/release.py

release: $(INSTALLED)
	$(PY) benchmarks/release.py $(or $(VERSION),$(error name a version: make release VERSION=0.1.0))

# make demo | demo-quick | test | test-deployments | lint | typecheck | bench | results | docs: each installs what it needs into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml $(shell find fedkern_flwr strategies clients simulations -type f \
	-not -path '*/__pycache__/*' -not -name '*.pyc')

# Quiet and offline: no telemetry, no update checks, no installs at run time.
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export RAY_USAGE_STATS_ENABLED := 0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What is imported is compiled once: pip compiles nothing, most of it is never imported.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-quick test test-quick test-slow test-deployments test-long lint typecheck bench results docs clean

demo: $(VENV)/.simulation
	@echo "every method on Ray: some six minutes on two processors; make demo-quick takes half a minute"
	$(BIN)/fedkern compare demo

# One task of each kind, the hybrid one first, in one process.
demo-quick: $(VENV)/.simulation
	@echo "four tasks in one process: about half a minute"
	$(BIN)/fedkern compare demo-quick

# Tests run against the installed package, never against the source tree. Those that start Ray or
# servers wait half of their time: beside those of one process, on two cores. Their files alone are
# read: all would take longer than some of their tests.
SLOW := ray or app or packaging
SLOW_FILES = $(shell grep -rlE 'pytest\.mark\.(ray|app|packaging)' tests --include='test_*.py')
BY_HAND := deployment or long

# Nodes wait until what they write is on the disk, most of the time of many tests: a disk in memory,
# where there is one with enough room, does not let them wait. One thread each: there are two. And
# large arrays go back to the system when they are freed, else a worker keeps them to its end.
QUICK := OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=1048576 MALLOC_TRIM_THRESHOLD_=1048576 $(shell df -Pm /dev/shm 2>/dev/null | \
	awk '$$4 > 2000 && $$6 == "/dev/shm" { print "TMPDIR=/dev/shm" }')

test: $(VENV)/.test
	$(MAKE) --jobs=2 test-quick test-slow

test-quick: $(VENV)/.test
	$(QUICK) $(BIN)/pytest tests -q -n 2 --dist worksteal -m "not ($(SLOW) or $(BY_HAND))" --durations=15

test-slow: $(VENV)/.test
	$(BIN)/pytest $(SLOW_FILES) -q -m "($(SLOW)) and not ($(BY_HAND))" --durations=5

# Every method and the walk-through of docs/deploy.md on real servers, and a Ray cluster; minutes.
test-deployments: $(VENV)/.test
	$(BIN)/pytest tests -m deployment

# Long runs that prove once more what shorter ones do.
test-long: $(VENV)/.dev
	$(BIN)/pytest tests -m long

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/.dev
	cd tests && $(abspath $(BIN))/mypy --config-file ../pyproject.toml -p fedkern_flwr

# Some benchmarks at smaller sizes, and their figures in docs/benchmarks.md; minutes.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py run --quick --json build/bench.json
	$(BIN)/python benchmarks/run.py table build/bench.json

# Computes a preset of fedkern compare, PRESET=fed-cg-table2, and renews its tables in the documentation.
results: $(VENV)/.dev
	$(BIN)/python benchmarks/results.py keep $(PRESET)

# Offline; executes the tutorials that have changed. The site is build/docs/index.html.
docs: $(VENV)/.docs
	$(BIN)/sphinx-build -W --keep-going docs build/docs

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

# The stamps are older than the sources after every change: the package is installed anew. What an
# earlier build has left goes first; the links of a strict editable install in build/ stay.
$(VENV)/.simulation: $(VENV)/bin/pip $(SOURCES)
	rm -rf build/lib build/bdist*
	$(BIN)/pip install --quiet --no-compile '.[simulation]'
	touch $@

$(VENV)/.test: $(VENV)/bin/pip $(SOURCES)
	rm -rf build/lib build/bdist*
	$(BIN)/pip install --quiet --no-compile '.[test]'
	touch $@

$(VENV)/.dev: $(VENV)/bin/pip $(SOURCES)
	rm -rf build/lib build/bdist*
	$(BIN)/pip install --quiet --no-compile '.[dev]'
	touch $@

$(VENV)/.docs: $(VENV)/bin/pip $(SOURCES)
	rm -rf build/lib build/bdist*
	$(BIN)/pip install --quiet --no-compile '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

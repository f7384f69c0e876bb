# make demo | demo-quick | test | test-extras | test-long | test-deployments | lint | typecheck | bench | results | docs | release
# Each installs what it needs into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Quiet and offline: no telemetry, no update checks, no installs at run time.
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export RAY_USAGE_STATS_ENABLED := 0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What is imported is compiled once: pip compiles nothing, most of it is never imported.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-quick test test-quick test-slow test-extras test-long test-deployments lint typecheck \
	bench results docs release clean

demo: $(VENV)/.simulation
	@echo "every method once: some minutes on two processors; make demo-quick takes half a minute"
	$(BIN)/fedkern compare demo

# One task of each kind, the hybrid one first, in one process.
demo-quick: $(VENV)/.simulation
	@echo "four tasks in one process: about half a minute"
	$(BIN)/fedkern compare demo-quick

# The package is installed so that a change of the source needs no other installation; that a wheel
# has all of it, and works, is tested by tests/packaging/test_wheel.py. Tests that start Ray or
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

test: $(VENV)/.dev
	$(MAKE) --jobs=2 test-quick test-slow

test-quick: $(VENV)/.dev
	$(QUICK) $(BIN)/pytest tests -q -n 2 --dist worksteal -m "not ($(SLOW) or $(BY_HAND))" --durations=15

test-slow: $(VENV)/.dev
	$(BIN)/pytest $(SLOW_FILES) -q -m "($(SLOW)) and not ($(BY_HAND))" --durations=5

# Exported and tracked runs, XGBoost, tutorials: tests that are skipped where an extra is missing.
test-extras: $(VENV)/.long
	$(QUICK) $(BIN)/pytest tests -q -m "extra and not ($(BY_HAND))"

# Long runs that prove once more what shorter ones do, and those of test-extras.
test-long: $(VENV)/.long
	$(BIN)/pytest tests -m "long or extra"

# Every method and the walk-through of docs/deploy.md on real servers, and a Ray cluster; minutes.
test-deployments: $(VENV)/.dev
	$(BIN)/pytest tests -m deployment

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy follows no editable installation: it reads the four rooms as one package, by links.
TREE := build/tree/fedkern_flwr
typecheck: $(VENV)/.dev
	rm -rf $(TREE)
	mkdir -p $(TREE)
	ln -s $(CURDIR)/fedkern_flwr/* $(addprefix $(CURDIR)/,strategies clients simulations) $(TREE)
	cd $(TREE)/.. && MYPYPATH=. $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml \
		--cache-dir $(CURDIR)/.mypy_cache -p fedkern_flwr

# Some benchmarks at smaller sizes, and their figures in benchmarks/results/quick.md; minutes.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py run --quick --json build/bench.json
	$(BIN)/python benchmarks/run.py table build/bench.json

# Computes a preset of fedkern compare, PRESET=fed-cg-table2, and renews its tables in the documentation.
results: $(VENV)/.dev $(VENV)/.peers
	$(BIN)/python benchmarks/results.py keep $(PRESET)

# Offline; executes the tutorials that have changed. The site is build/docs/index.html.
docs: $(VENV)/.docs
	$(BIN)/sphinx-build -W --keep-going docs build/docs

# dist/: a wheel and an sdist, the same bytes each time, of the last commit; what operators install by
# its hashes; the licences of that, and a list of it for scanners (CycloneDX).
release: $(VENV)/.release
	$(BIN)/python benchmarks/release.py

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

# Installed again when what is required has changed, or the version.
$(VENV)/.%: pyproject.toml fedkern_flwr/__init__.py | $(VENV)/bin/pip
	$(BIN)/pip install --quiet --no-compile --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

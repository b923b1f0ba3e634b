# Two commands for newcomers: `make demo` and `make test`. Both install what they need into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export AIRFLOW__CORE__LOAD_EXAMPLES := False
# Twice the cores: half of the time of a test process is waiting for servers.
WORKERS ?= 4

# One file for a worker without Airflow: any of these Pythons runs it, on machines like this one.
PYZ ?= zkmq.pyz
PYZ_PYTHONS ?= 3.11 3.12 3.13
PARTS := $(PYZ).parts
# What no verb needs: each file in the archive takes a worker a kilobyte of memory. Of the time zones, UTC stays.
UNUSED := tzdata/zoneinfo/*/ kazoo/tests pygments/lexers/[a-z]*.py
INTO := $(BIN)/python -m pip install --quiet --no-deps --no-compile --target

$(PYZ): $(VENV)/.ready
	rm -rf $(PARTS)
	for version in $(PYZ_PYTHONS); do \
	    $(INTO) $(PARTS)/$$version --only-binary :all: --python-version $$version -r docs/worker-requirements.txt \
	        && cp -R $(PARTS)/$$version/. $(PARTS)/all || exit 1; \
	done
	$(INTO) $(PARTS)/all .
	cd $(PARTS)/all && rm -rf $(UNUSED)
	$(BIN)/shiv --site-packages $(PARTS)/all --console-script zkmq --compressed --reproducible --output-file $@
	rm -rf $(PARTS)

.PHONY: demo flights test test-all acceptance test-spark-provider test-matrix bench soak docs mutants lint format dist audit clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed") if sys.version_info < (3, 11) else None'
	@echo "Installing Airflow, Spark and what the tests need into $(VENV), once: about two minutes, longer on a slow line"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --progress-bar off --editable '.[dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/python example_dags/demo.py $(if $(KEEP),--keep)

# Who was late, of all flights from New York in 2013: Spark, queue, workers and Airflow together. DAYS=14: two weeks only.
flights: $(VENV)/.ready
	$(BIN)/python example_dags/flights.py $(if $(DAYS),--days $(DAYS))

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

# What every change runs: all tests but those marked `full`, and 1 000 schedules. ARGS="tests/unit -k lanes" for some of it.
test: $(VENV)/.ready
	$(PYTEST) -m "not full" $(ARGS)

# What CI runs: every test, and 20 000 schedules of the simulator.
test-all: export ZKMQ_SCHEDULES ?= 20000
test-all: $(VENV)/.ready
	$(PYTEST) $(ARGS)

# What takes a real Airflow too long for each change: a triggerer that stands still, ZooKeeper away for five minutes, a DAG
# paused for ten, 300 enqueues that wait, a thousand deferred sensors, 200 tasks that runs acknowledge between deaths. Then the
# README's first DAG from nothing, and the wheel in clean environments: each Python by the oldest and the newest Airflow.
acceptance: $(VENV)/.ready
	ZKMQ_E2E_FULL=1 ZKMQ_E2E_AWAY=300 ZKMQ_E2E_PAUSED=600 ZKMQ_E2E_PENDING=50 ZKMQ_E2E_ENQUEUES=300 ZKMQ_E2E_SENSORS=1000 \
		$(BIN)/python -m pytest tests/e2e $(ARGS)
	ZKMQ_SCALE=1 $(BIN)/python -m pytest tests/integration/test_strangers_path.py tests/integration/test_release.py \
		tests/integration/test_pages_run.py $(ARGS)

# Airflow's provider for Spark brings files of its own in PySpark's place: it is tried in an environment of its own.
test-spark-provider: $(VENV)-spark/.ready
	$(VENV)-spark/bin/python -m pytest tests/airflow/test_spark_submit.py

$(VENV)-spark/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-spark
	$(VENV)-spark/bin/python -m pip install --quiet --editable '.[spark-provider]' 'pytest>=9,<9.2' pytest-asyncio pytest-timeout hypothesis
	touch $@

# The Airflow classes by Python 3.11 and 3.13, as far as they are here, and by the oldest and the newest Airflow.
test-matrix:
	$(PYTHON) -m tests.matrix $(if $(PYTHONS),--pythons $(PYTHONS)) $(if $(AIRFLOWS),--airflows $(AIRFLOWS)) $(if $(ARGS),-- $(ARGS))

# The engine and its peers side by side; docs/performance.md. ARGS="--rows claim --rounds 11" for some of it.
bench: $(VENV)/.ready
	$(BIN)/python -m tests.benchmarks.compare $(ARGS)

# Schedules with new seeds until something is found, or for ever; see docs/simulator.md.
soak: $(VENV)/.ready
	$(BIN)/python -m tests.simulation --jobs $(WORKERS) $(if $(SCHEDULES),--schedules $(SCHEDULES),--forever)

# The site of the documentation, in .zkmq/site: open its index.html. A warning is an error.
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .mkdocs.yml

# Known bugs, put in one at a time: each must be found.
mutants: $(VENV)/.ready
	$(BIN)/python -m tests.simulation.mutants

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What a release has, in `dist`: sdist, wheel, SBOM and their digests. By the same hatchling, everybody gets the same sdist and
# wheel from the same commit.
dist: $(VENV)/.ready
	$(BIN)/python -m tests.release

# Known vulnerabilities of all that is installed here, and of what the page's bundle holds. It asks osv.dev and npm: without
# the network it fails.
audit: $(VENV)/.ready
	$(BIN)/pip-audit --local --skip-editable --vulnerability-service osv
	cd airflow_provider_zkmq/plugins/page && npm audit --package-lock-only --omit=dev

clean:
	rm -rf dist $(VENV) $(VENV)-spark $(VENV)-matrix .zkmq .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

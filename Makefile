# Needs make and Python 3.11 or newer; every target installs what else it needs in .venv.

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name))))
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(patsubst %,reports/data/runs_%.csv,open opened gathered gathered_clusters gathered_single gathered_more gathered_small gathered_tuning gathered_fleet gathered_weak gathered_typical gathered_recent gathered_fresh gathered_wide gathered_sweeps gathered_varied gathered_further gathered_spread gathered_latest gathered_broad)
JOB ?= workloads/llama3-70b-64xh100.yaml
PYTEST_FLAGS ?= -n auto --maxprocesses 4
MUTANTS_FLAGS ?= --count 200 --seed 1
PYTHONS ?= $(foreach minor,11 12 13 14,$(shell python3.$(minor) -c 'print("python3.$(minor)")' 2> /dev/null))
LOCKED := studio mcp dask parquet chakra
N ?= 1000000
SEED ?= 1
SEEDS ?= $(shell for i in 1 2 3; do od -An -N3 -tu4 /dev/urandom; done)

.DEFAULT_GOAL := help
.PHONY: help demo test explore fuzz lock audit versions lint types golden mutants generated schedules network memory strategies tensor-parallel \
  collectives looks planning distributions serving-report rl-report importers captures own-code pictures advice diagnosis torch-runs coverage accuracy what-if learning zero-bubble performance performance-against fit bands gpu gpu-bundle gpu-report kills docs docs-site clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.core  ## simulate one training step of Llama 3 70B on 64 GPUs and draw it
	$(BIN)/clustersim run $(JOB) --plot build/demo --trace build/demo/trace.json.gz

test: lint types  ## lint, types and all tests
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

explore: $(VENV)/.dev  ## properties on examples of three random seeds, or of SEEDS="1 2"; they are printed
	@for seed in $(SEEDS); do echo "SEEDS=$$seed"; \
	  $(BIN)/python -m pytest $(PYTEST_FLAGS) -m "hypothesis and not slow and not gpu" \
	    --hypothesis-profile=explore --hypothesis-seed=$$seed || exit 1; done

fuzz: $(VENV)/.dev  ## reports/fuzz.md: N hostile inputs by SEED; goes on where it stopped, an hour for a million
	$(BIN)/python -m tests.fuzz --count $(N) --seed $(SEED) --report reports/fuzz.md

lint: $(VENV)/.dev  ## style of the code
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev  ## static types
	$(BIN)/mypy

lock: $(VENV)/.python  ## requirements.lock: what users install, each library with its version and hashes
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml $(LOCKED:%=--extra %) --universal --generate-hashes \
	  --python-version 3.11 --no-header --no-annotate --quiet --output-file requirements.lock

audit: $(VENV)/.python  ## known holes of the libraries in requirements.lock; asks pypi.org
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --strict --disable-pip --require-hashes -r requirements.lock

versions:  ## reports/versions.md: the golden jobs on every Python that is here
	for name in $(PYTHONS); do $$name -m venv build/$$name && build/$$name/bin/pip install --quiet . || exit 1; done
	build/$(firstword $(PYTHONS))/bin/python -m tests.golden.versions \
	  $(PYTHONS:%=build/%/bin/python) > build/versions.md
	mv build/versions.md reports/versions.md

coverage: $(VENV)/.dev  ## tests, and the lines that they never reach
	$(BIN)/python -m pytest $(PYTEST_FLAGS) --cov --cov-report=term-missing:skip-covered

mutants: $(VENV)/.dev  ## reports/mutants.md: which small mistakes in the core no test would notice; 40 minutes
	$(BIN)/python -m tests.mutants $(MUTANTS_FLAGS)

golden: $(VENV)/.dev  ## tests/golden/: results to the last digit, after a change that was meant to move them
	$(BIN)/python -m tests.golden.results

generated: $(VENV)/.core  ## everything written from code: JSON schemas, and five pages of docs/ for reference
	$(BIN)/clustersim schema profile > hardware_profiles/schema.json
	$(BIN)/clustersim schema job > workloads/schema.json
	$(BIN)/clustersim schema model > workloads/models/schema.json
	$(BIN)/clustersim schema offers > workloads/offers/schema.json
	$(BIN)/clustersim schema serving > workloads/serving/schema.json
	$(BIN)/python -m tests.reference

schedules: $(VENV)/.core  ## reports/schedules/: every pipeline schedule, drawn and explained
	$(BIN)/python -m reports.make.galleries.schedule_gallery reports/schedules

network: $(VENV)/.core  ## reports/network/: systems, placements, rings and bus bandwidth, drawn
	$(BIN)/python -m reports.make.galleries.network_gallery reports/network reports/data/collectives_open.csv

memory: $(VENV)/.core  ## reports/memory_by_schedule.png: what every stage holds, by schedule
	$(BIN)/python -m reports.make.galleries.schedule_memory workloads/llama3-8b-8xh100.yaml reports/memory_by_schedule.png

memory-errors: $(VENV)/.core  ## simulator/facts/memory_errors.yaml: how far predicted memory is off, fitted
	$(BIN)/python -m reports.make.fit.memory_errors reports/first_sight.csv \
	  $(RUNS) reports/data/memory_gathered.csv --write

memory-report: $(VENV)/.core  ## reports/memory.md: predicted against published memory, and how sure it is
	$(BIN)/python -m reports.make.accuracy.memory_page reports/first_sight.csv reports/data/out_of_memory.csv \
	  $(RUNS) reports/data/memory_gathered.csv --picture reports/memory.png > build-memory.md
	mv build-memory.md reports/memory.md

looks: docs-site $(VENV)/.dev  ## reports/look/: how pages of --html, studio and site look, by an installed Chromium; 3 minutes
	$(BIN)/python -m reports.make.galleries.page_pictures reports/look

strategies: $(VENV)/.core  ## reports/strategies/: ways of data parallelism, compared and drawn
	$(BIN)/python -m reports.make.strategies.strategies_report workloads/llama-7b-8xh100.yaml reports/strategies

tensor-parallel: $(VENV)/.core  ## reports/tensor-parallel.md: 1D, 2D, 2.5D and 3D compared
	$(BIN)/python -m reports.make.strategies.tensor_methods_page reports/tensor-parallel

accuracy: $(VENV)/.core  ## reports/accuracy.md: every published run, predicted
	$(BIN)/python -m reports.make.accuracy.accuracy_report \
	  reports/data/runs_open.csv reports/data/cross_validation.csv \
	  reports/data/out_of_memory.csv reports/data/known_misses.csv reports/first_sight.csv \
	  reports/data/step_bands.csv reports/data/learnt_runs.csv reports/accuracy.png > build-accuracy.md
	mv build-accuracy.md reports/accuracy.md

what-if: $(VENV)/.core  ## reports/what_if.md: what one change does, and which layout is picked
	$(BIN)/python -m reports.make.accuracy.what_if_page reports/data/step_bands.csv \
	  reports/data/cross_validation.csv reports/first_sight.csv \
	  reports/data/what_if_odds.csv $(RUNS) --picture reports/what_if.png > build-what-if.md
	mv build-what-if.md reports/what_if.md

learning: $(VENV)/.core  ## reports/learning.md: is a later version better on runs that it had not seen either; asks earlier ones, an hour at first
	$(BIN)/python -m reports.make.learning.earlier_versions reports/first_sight.csv \
	  reports/data/earlier_versions.csv $(filter-out reports/data/runs_open.csv,$(RUNS))
	$(BIN)/python -m reports.make.learning.learning_page reports/first_sight.csv \
	  reports/data/earlier_versions.csv reports/learning.png > build-learning.md
	mv build-learning.md reports/learning.md

collectives: $(VENV)/.core  ## reports/collectives.md: exchanges of sources left out, overlaps, what profiles rest on; 3 minutes
	$(BIN)/python -m reports.make.collectives.left_out reports/data/collectives_open.csv \
	  reports/data/collectives_opened.csv reports/data/collectives_gathered.csv \
	  reports/data/collectives_left_out.csv
	$(BIN)/python -m reports.make.collectives.collectives_page reports/data/collectives_left_out.csv \
	  reports/data/overlap_opened.csv.gz reports/data/collectives_open.csv \
	  reports/data/collectives_opened.csv reports/data/collectives_gathered.csv > build-collectives.md
	mv build-collectives.md reports/collectives.md

zero-bubble: $(VENV)/.core  ## reports/zero_bubble.md: schedules against 1f1b, measured and predicted
	$(BIN)/python -m reports.make.accuracy.schedule_gains reports/data/zero_bubble.csv reports/data/zero_bubble_rates.csv > build-zero-bubble.md
	mv build-zero-bubble.md reports/zero_bubble.md

serving-report: $(VENV)/.core  ## reports/serving.md and serving_papers.md: serving against runs and papers; takes some minutes
	$(BIN)/python -m reports.make.serving_papers reports/serving_papers.md
	$(BIN)/python -m reports.make.serving_page reports/serving.md

rl-report: $(VENV)/.core  ## reports/reinforcement.md: published steps of GRPO against predicted ones
	$(BIN)/python -m reports.make.rl_page reports/data/rl_runs.csv reports/data/rl_first_sight.csv > build-rl.md
	mv build-rl.md reports/reinforcement.md
	$(BIN)/clustersim rl grpo-llama3.1-8b-16xh100 --set order=one-step-off \
	  --set training.cluster.gpus=8 --set generation.gpus=8 --plot reports/rl_step.png

planning: $(VENV)/.core  ## reports/planning.md: published plans and GPU-hours against predicted ones
	$(BIN)/python -m reports.make.planning.planning_report reports/data > build-planning.md
	mv build-planning.md reports/planning.md

distributions: $(VENV)/.core  ## reports/distributions.md: how steps spread, against published runs
	$(BIN)/python -m reports.make.planning.published_spreads reports/distributions.md

captures: $(VENV)/.dev  ## reports/captures.md: captured steps against the simulator's own programs; 10 minutes
	$(BIN)/python -m reports.make.captures > build-captures.md
	mv build-captures.md reports/captures.md

pictures: $(VENV)/.core  ## reports/pictures.md: networks over pictures, captured, against measured steps
	$(BIN)/python -m reports.make.captures.pictures_page

own-code: $(VENV)/.dev  ## reports/own_code.md: code over other libraries, captured; CODE_PYTHON=that of an environment with them
	$(BIN)/python -m reports.make.captures.own_code $(CODE_PYTHON)

importers: $(VENV)/.core  ## reports/importers.md: settings files of other frameworks; PACKAGES=folder of unpacked ones
	$(BIN)/python -m reports.make.importers $(PACKAGES) > build-importers.md
	mv build-importers.md reports/importers.md

advice: $(VENV)/.core  ## reports/which-strategy.md: which parallel strategy suits which cluster
	$(BIN)/python -m reports.make.strategies.which_strategy reports/which-strategy.png > build-advice.md
	mv build-advice.md reports/which-strategy.md

torch-runs: $(VENV)/.core  ## reports/torch.md: real torch runs, kept, against their predictions of today
	$(BIN)/python -m reports.make.torch_runs.torch_page reports/torch > build-torch.md
	mv build-torch.md reports/torch.md

performance: $(VENV)/.bench  ## reports/performance.md: how long everything takes, and how that grows
	mkdir -p build
	$(BIN)/python -m pytest -n 0 -m bench --benchmark-json build/benchmarks.json tests/bench
	$(BIN)/python -m tests.bench.report build/benchmarks.json

performance-against: $(VENV)/.core  ## processor times here and at COMMIT=..., in one run, and their ratios
	$(BIN)/python -m tests.bench.against $(COMMIT)

fit: $(VENV)/.core  ## fit clocks to the published runs of all tables, cross-validate by source
	$(BIN)/python -m reports.make.fit.fit_training $(RUNS) --write

bands: $(VENV)/.core  ## fit the model of errors behind every band, and see what it covers; 3 minutes, after every change of predictions
	$(BIN)/python -m reports.make.fit.fit_step_errors $(RUNS) --write

diagnosis: $(VENV)/.core  ## reports/diagnosis.md: how often diagnose finds what a run hides; some minutes
	$(BIN)/python -m reports.make.planning.diagnosis_score 30 > build-diagnosis.md
	mv build-diagnosis.md reports/diagnosis.md

gpu: $(VENV)/.calibrate  ## reports/gpu/: measure this machine's GPU, then train the grid on it and compare; goes on where it stopped
	$(BIN)/clustersim calibrate gpu --out reports/gpu/profile.yaml --minutes 10 --resume
	$(BIN)/python -m reports.make.torch_runs.gpu_check reports/gpu

gpu-bundle: $(VENV)/.calibrate  ## gpu_bundle.pyz: one file that measures a GPU where only torch is, in calls of nine minutes
	$(BIN)/python -m reports.make.gpu_bundle --out gpu_bundle.pyz

gpu-report: RAW ?= reports/gpu
gpu-report: SHIPPED ?= h100-sxm-80gb
gpu-report: $(VENV)/.calibrate  ## reports/gpu/raw.md: what gpu_bundle.pyz measured against predictions; RAW=folder of one .jsonl and SHIPPED=profile for another device (reports/gpu/h200 and h200-sxm-141gb)
	$(BIN)/clustersim calibrate gpu --from $(RAW)/*.jsonl* --out $(RAW)/profile.yaml --resume
	$(BIN)/python -m reports.make.gpu_bundle.compare $(RAW) $(RAW) --profile $(RAW)/profile.yaml \
	  --shipped $(SHIPPED)

kills: $(VENV)/.kills  ## reports/kills.md: commands killed at random moments, and two sweeps at once; half an hour
	$(BIN)/python -m reports.make.kills.kills_page 6 400 build/kills.json > build-kills.md
	rm build/kills.json
	mv build-kills.md reports/kills.md

docs: generated  ## README, guide and tutorial: outputs, tables and pictures of now
	$(BIN)/clustersim run $(JOB) --plot reports/demo > /dev/null
	$(BIN)/python -m tests.pages
	$(BIN)/python -m tests.tutorial

docs-site: $(VENV)/.docs  ## build/site/index.html: all pages as a site, with search and without a network
	$(BIN)/python -m reports.make.docs_site

clean:  ## remove everything that make made
	rm -rf $(VENV) build dist build-accuracy.md build-what-if.md build-memory.md build-importers.md build-zero-bubble.md build-planning.md build-advice.md build-diagnosis.md build-torch.md build-kills.md .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage
	find simulator tests reports -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an installation is as new as the list of dependencies it was made from.
$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than Python 3.11; set PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: pyproject.toml | $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[test,dev]'
	@touch $@ $(VENV)/.core

$(VENV)/.calibrate: pyproject.toml | $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[calibrate]'
	@touch $@ $(VENV)/.core

$(VENV)/.kills: pyproject.toml | $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[calibrate,dask]'
	@touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml | $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@ $(VENV)/.core

$(VENV)/.bench: pyproject.toml | $(VENV)/.python
	$(BIN)/python -m pip install --quiet --editable '.[test,bench]'
	@touch $@ $(VENV)/.core

# Every target is one script, so that people and CI run the same thing. Needs Python >= 3.11 and make, nothing else.
.PHONY: setup demo unit test check docs bench load attack chaos storage backup launchers fuzz plans clean

setup:  ## create .venv with everything that demo and tests need
	@scripts/setup

demo: setup  ## the whole product on a real model, in a few minutes
	@scripts/demo

unit: setup  ## the tests without ranks, services and subprocesses: at most 3 minutes on two cores
	@scripts/unit

test: setup  ## style, types and tests: LONG=1 for those, too, that take long
	@scripts/test

check: setup  ## style and types only
	@scripts/check

docs: setup  ## the documentation as a site in site/, without anything from elsewhere
	@scripts/docs

bench: setup  ## the benchmarks, each with its table
	@scripts/bench

load: setup  ## the service under load, on SQLite and as two processes on PostgreSQL: SECONDS=600 for the long form
	@.venv/bin/python -m benchmarks.service --seconds $(or $(SECONDS),20) --check --json
	@.venv/bin/python -m benchmarks.service --seconds $(or $(SECONDS),20) --processes 2 --database postgresql --check --json

attack: setup  ## the service attacked by strangers and a tenant: ONLY=WORD for some of the ways, OUTPUT=benchmarks/data/attack.json
	@.venv/bin/python -m benchmarks.attack $(if $(ONLY),--only "$(ONLY)") --check --json $(if $(OUTPUT),-o $(OUTPUT))

chaos: setup  ## the service under kills: LONG=1 for the long form
	@.venv/bin/python -m benchmarks.chaos $(if $(LONG),--long) --json

storage: setup  ## the service while its storage is locked, read-only, full or fails, on SQLite and PostgreSQL (root, for disks of its own)
	@.venv/bin/python -m benchmarks.storage --check --json $(if $(OUTPUT),-o $(OUTPUT))

backup: setup  ## backups of a service under 20 posts a second, each restored: ROUNDS=20, on SQLite and PostgreSQL
	@.venv/bin/python -m benchmarks.backup --rounds $(or $(ROUNDS),2) --check --json
	@.venv/bin/python -m benchmarks.backup --rounds $(or $(ROUNDS),2) --database postgresql --check --json

launchers: setup  ## lost submissions on a real Slurm: EACH=20 of every kind (root; scripts/system)
	@.venv/bin/python -m benchmarks.launchers --each $(or $(EACH),20) --check --json $(if $(OUTPUT),-o $(OUTPUT))

fuzz: setup  ## made-up requests and changed documents: SEED=N repeats a run, CASES=N of each route, INPUTS=30500 OUTPUT=benchmarks/data/fuzz.json the long form
	@.venv/bin/python -m benchmarks.fuzz $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES)) \
	  $(if $(INPUTS),--inputs $(INPUTS)) $(if $(OUTPUT),-o $(OUTPUT)) --check --json

plans: setup  ## whether what is asked of a plan ever beats what is free to choose: SEED=N repeats a run, CASES=N of it
	@.venv/bin/python -m benchmarks.plans $(if $(SEED),--seed $(SEED)) --cases $(or $(CASES),10) --check --json $(if $(OUTPUT),-o $(OUTPUT))

clean:
	rm -rf .venv demo-out site .pytest_cache .mypy_cache .ruff_cache .hypothesis

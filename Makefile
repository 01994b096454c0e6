# Everything runs from .venv, which `make install` makes. PYTHON names another interpreter, JAVA_HOME another Java.
.PHONY: install install-test package demo figure3 test test-long test-faults simulate check bench bench-audit bench-broker bench-clients bench-cluster bench-mirror bench-load bench-registry bench-scale bench-capacity bench-security bench-paper constraints clean

install:
	@deploy/local/install.sh

install-test: install
	@deploy/local/install.sh test
	@tests/support/install.sh

# Wheel, source archive, Debian package and bill of materials in dist/: docs/deploy/packages.md.
package:
	@deploy/debian/build.sh

demo: install
	@.venv/bin/pipeline demo $(if $(KEEP),--keep) $(if $(SECURE),--secure)

# Figure 3 of the paper in network namespaces, measured and taken down again; needs root: docs/deploy/figure3.md.
figure3: install install-test
	@{ .venv/bin/python -m deploy.figure3 up && .venv/bin/python -m deploy.figure3 measure; }; code=$$?; \
	  .venv/bin/python -m deploy.figure3 down; exit $$code

# TESTS names some of them; all run in parts, six at a time.
test: install install-test
	@$(if $(TESTS),.venv/bin/python -m pytest $(TESTS),.venv/bin/python -m tests.support.suite)

# What takes too long for each change: the tests marked `long`. TESTS names some; JOBS, RESUME and SIZE: docs/testing.md.
test-long: install install-test
	@$(if $(TESTS),.venv/bin/python -m pytest -m long $(TESTS),.venv/bin/python -m tests.support.long_suite \
	  $(if $(JOBS),--jobs $(JOBS)) $(if $(RESUME),--resume $(RESUME)))

check: install install-test
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/python -m tests.support.doc_programs
	.venv/bin/lint-imports --no-cache

bench: install install-test
	.venv/bin/python -m bench $(or $(BENCH),codec columns log cleaner serialising)

# BENCH: of which rows, QUICK, ROUNDS, SCALE and JSON as in docs/benchmarks.md.
bench_options = $(if $(BENCH),--rows '$(BENCH)') $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	$(if $(SCALE),--scale $(SCALE)) $(if $(JSON),--json) $(if $(ALONE),--alone)

# SEEDS simulated clusters (SCENARIO=mirror: sites with mirrors; audit: with the audit beside them) with faults, from
# FIRST_SEED on, JOBS at a time; RESUME names a file: docs/testing.md.
simulate: install
	@.venv/bin/python -m pipeline.testing.simulation --seeds $(or $(SEEDS),1000) --first-seed $(or $(FIRST_SEED),1) \
	  --scenario $(or $(SCENARIO),cluster) $(if $(JOBS),--jobs $(JOBS)) $(if $(RESUME),--resume $(RESUME))

bench-audit: install install-test
	.venv/bin/python -m bench audit $(bench_options)

bench-broker: install install-test
	.venv/bin/python -m bench broker $(bench_options)

bench-clients: install install-test
	.venv/bin/python -m bench clients $(bench_options)

bench-cluster: install install-test
	.venv/bin/python -m bench cluster $(bench_options)

bench-mirror: install install-test
	.venv/bin/python -m bench mirror $(bench_options)

bench-load: install install-test
	@bench/load/install.sh
	.venv/bin/python -m bench load $(bench_options)

bench-registry: install install-test
	.venv/bin/python -m bench registry $(bench_options)

bench-scale: install install-test
	.venv/bin/python -m bench scale $(bench_options)

bench-capacity: install install-test
	.venv/bin/python -m bench capacity $(bench_options)

bench-security: install install-test
	.venv/bin/python -m bench security $(bench_options)

test-faults: install install-test
	.venv/bin/python -m bench faults $(bench_options)

bench-paper: install install-test
	@deploy/local/install.sh bench
	@bench/paper/install.sh
	.venv/bin/python -m bench paper $(bench_options)

constraints:
	(echo "# The tested versions: a fresh install is this one. Renew with 'make constraints'."; \
	 .venv/bin/python -m pip freeze --exclude-editable) > constraints.txt.new && mv constraints.txt.new constraints.txt

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info

#!/bin/sh
# All tests, as two halves side by side: most of them wait for other processes, so both take little longer than one.
# The first half shows its progress, what the second one says follows at the end.
set -u
cd "$(dirname "$0")/../.."
FIRST_HALF="tests/unit tests/conformance tests/simulation"
SECOND_HALF="tests/integration tests/faults"
log=$(mktemp)
# shellcheck disable=SC2086
.venv/bin/python -m pytest $SECOND_HALF >"$log" 2>&1 &
second=$!
trap 'kill "$second" 2>/dev/null; wait "$second"; rm -f "$log"' EXIT
trap 'exit 130' INT TERM
echo "Beside these: $SECOND_HALF"
# shellcheck disable=SC2086
.venv/bin/python -m pytest $FIRST_HALF
first_code=$?
echo "Waiting for: $SECOND_HALF"
wait "$second"
second_code=$?
cat "$log"
[ "$first_code" = 0 ] && exit "$second_code"
exit "$first_code"

#!/bin/sh
# Installs the package into .venv, with the tested versions of constraints.txt.
# Usage: install.sh [EXTRA]   (EXTRA: test)
set -eu
cd "$(dirname "$0")/../.."
extra=${1:-}

fail() { echo "$1" >&2; exit 1; }

python=
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$candidate; break; fi
done
found=$("${PYTHON:-python3}" --version 2>/dev/null) && [ -n "$found" ] || found=${PYTHON:+"$PYTHON, which is no Python"}
[ -n "$python" ] || fail "Python 3.11 or newer is needed; found ${found:-none}. Install python3.11 (Debian: apt install python3 python3-venv), or set PYTHON."
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$("$python" --version) has no venv module. Install it (Debian: apt install python3-venv)."

java=java
[ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
version=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)*\([0-9]*\).*/\2/p' | head -n 1) || version=
[ -n "$version" ] || fail "Java 17 or newer is needed; found none. Install it (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME."
[ "$version" -ge 17 ] || fail "Java 17 or newer is needed; found Java $version. Install it (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME."

stamp=.venv/.installed${extra:+-$extra}
if ! [ -f "$stamp" ] || ! [ "$stamp" -nt pyproject.toml ] || ! [ "$stamp" -nt constraints.txt ]; then
    echo "Installing into .venv ($("$python" --version), Java $version)" >&2
    # An environment without pip is what an interrupted run leaves.
    .venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 --constraint constraints.txt --editable ".${extra:+[$extra]}"
    if [ -z "$extra" ]; then
        .venv/bin/python -m pipeline.hadoop.load.class_archive >/dev/null 2>&1 ||
            echo "The archive of Spark's classes could not be written: loads start more slowly" >&2
    fi
    touch "$stamp"
fi
# pip compiles no editable package. Without bytecode each process compiles the sources at its start, and keeps nothing
# where PYTHONDONTWRITEBYTECODE is set or the user may not write here.
.venv/bin/python -m compileall -q pipeline

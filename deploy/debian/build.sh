#!/bin/sh
# Builds all packages into dist/, or into the directory that is given: see build.py. The tools go into .cache/package, in the
# versions of requirements.txt.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-/usr/bin/python3}
tools=.cache/package/tools
if ! [ "$tools/.installed" -nt deploy/debian/requirements.txt ]; then
    rm -rf "$tools"
    "$python" -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --requirement deploy/debian/requirements.txt
    touch "$tools/.installed"
fi
exec "$tools/bin/python" deploy/debian/build.py "${1:-dist}"

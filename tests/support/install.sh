#!/bin/sh
# What the tests need beyond Python packages: kcat, a foreign client, from the system or from Debian's package.
set -eu
cd "$(dirname "$0")/../.."
command -v kcat >/dev/null 2>&1 && exit 0
[ -x .cache/kcat/usr/bin/kcat ] && exit 0
fail() { echo "kcat is needed by the tests: $1 Install it (Debian: apt install kcat; macOS: brew install kcat)." >&2; exit 1; }
command -v apt-get >/dev/null 2>&1 || fail "it was not found."
echo "Fetching kcat" >&2
if [ "$(id -u)" = 0 ]; then apt-get update -qq >/dev/null 2>&1 || true; fi
# Unpacked below .cache, so that nothing on the machine changes and no root is needed.
mkdir -p .cache/kcat.new/debs
(cd .cache/kcat.new/debs && apt-get download -qq kcat librdkafka1 libyajl2 >/dev/null 2>&1) ||
    fail "its Debian packages could not be had."
for package in .cache/kcat.new/debs/*.deb; do dpkg-deb -x "$package" .cache/kcat.new; done
rm -rf .cache/kcat && mv .cache/kcat.new .cache/kcat

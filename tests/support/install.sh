#!/bin/sh
# Programs that the tests need beyond Python packages: kcat, a foreign client, Chromium for the pages, promtool for the
# alert rules, a KDC of Kerberos for HDFS, debootstrap, which makes machines of Debian's packages, and HAProxy, the
# balancer of deploy/figure3.
# From the system, or from Debian's packages, which are unpacked below .cache: nothing on the machine changes, no root.
set -eu
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/sbin:/sbin # where Debian has servers; a user's PATH need not have it

# fetch NAME PACKAGE...: unpacks the packages, and those that they depend on and the machine lacks, into .cache/NAME.
fetch() {
    name=$1; shift
    fail() { echo "$name is needed by the tests: $1 Install it (Debian: apt install $packages)." >&2; exit 1; }
    packages=$*
    command -v apt-get >/dev/null 2>&1 || fail "it was not found."
    echo "Fetching $name" >&2
    if [ "$(id -u)" = 0 ]; then apt-get update -qq >/dev/null 2>&1 || true; fi
    needed=$(apt-get install --simulate --no-install-recommends "$@" 2>/dev/null | sed -n 's/^Inst \([^ ]*\).*/\1/p')
    rm -rf ".cache/$name.new" && mkdir -p ".cache/$name.new/debs"
    { [ -n "$needed" ] && (cd ".cache/$name.new/debs" && apt-get download -qq $needed >/dev/null 2>&1); } ||
        fail "its Debian packages could not be had."
    for package in ".cache/$name.new/debs"/*.deb; do dpkg-deb -x "$package" ".cache/$name.new"; done
    rm -rf ".cache/$name.new/debs" ".cache/$name" && mv ".cache/$name.new" ".cache/$name"
}

command -v kcat >/dev/null 2>&1 || [ -x .cache/kcat/usr/bin/kcat ] || fetch kcat kcat
{ command -v chromium && command -v chromedriver; } >/dev/null 2>&1 || [ -x .cache/chromium/usr/bin/chromedriver ] ||
    fetch chromium chromium chromium-driver fonts-dejavu-core
command -v promtool >/dev/null 2>&1 || [ -x .cache/promtool/usr/bin/promtool ] || fetch promtool prometheus
command -v krb5kdc >/dev/null 2>&1 || [ -x .cache/kerberos/usr/sbin/krb5kdc ] || fetch kerberos krb5-kdc krb5-admin-server krb5-user
command -v debootstrap >/dev/null 2>&1 || [ -x .cache/debootstrap/usr/sbin/debootstrap ] || fetch debootstrap debootstrap
command -v haproxy >/dev/null 2>&1 || [ -x .cache/haproxy/usr/sbin/haproxy ] || fetch haproxy haproxy

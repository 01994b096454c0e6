#!/bin/sh
# RabbitMQ (with Erlang) and ActiveMQ as Debian's packages, unpacked below .cache: nothing on the machine changes, no root.
set -eu
cd "$(dirname "$0")/../.."
fail() { echo "make bench-paper: $1" >&2; exit 1; }

# Usage: unpack DIRECTORY PACKAGE...
unpack() {
    into=.cache/$1
    shift
    [ -d "$into" ] && return
    command -v apt-get >/dev/null 2>&1 || fail "apt-get was not found; RabbitMQ and ActiveMQ come as packages of Debian 12."
    echo "Fetching $1 and what it needs" >&2
    rm -rf "$into.new" && mkdir -p "$into.new/debs"
    (cd "$into.new/debs" && apt-get download -qq "$@" >/dev/null 2>&1) || fail "Debian's packages of $1 could not be had."
    for package in "$into.new"/debs/*.deb; do dpkg-deb -x "$package" "$into.new"; done
    rm -rf "$into.new/debs"
}

[ "$(id -u)" != 0 ] || apt-get update -qq >/dev/null 2>&1 || true

erlang="base crypto eldap inets mnesia os-mon parsetools public-key runtime-tools ssl syntax-tools tools xmerl asn1"
if [ ! -d .cache/rabbitmq ]; then
    unpack rabbitmq rabbitmq-server $(for part in $erlang; do echo "erlang-$part"; done)
    # Debian's erl knows one place only; let it find itself.
    sed -i 's|ROOTDIR=/usr/lib/erlang|ROOTDIR=$(dirname "$(dirname "$(readlink -f "$0")")")|' .cache/rabbitmq.new/usr/lib/erlang/bin/erl
    mv .cache/rabbitmq.new .cache/rabbitmq
fi
if [ ! -d .cache/activemq ]; then
    needed=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances activemq | grep -E '^(activemq|lib[a-z0-9.+-]*-java)$' | sort -u)
    unpack activemq activemq $needed
    mv .cache/activemq.new .cache/activemq
fi

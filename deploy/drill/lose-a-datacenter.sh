#!/bin/sh
# A drill: a live datacenter is lost, its topic is promoted at the hub, the datacenter comes back and follows the hub,
# and the topic returns to it. Run it in a staging company first: it stops brokers, and topics are DELETED and copied anew.
#
#   lose-a-datacenter.sh --name east --topic clicks --source east-1:9092 --hub hub-1:9092 \
#       --mirror http://hub-1:9180 --mirror-config mirror.toml --stop 'ssh ...' --start 'ssh ...' \
#       [--to-hub CMD] [--pause CMD] [--to-source CMD] --directory /backup/drill
#
#   --stop, --start   commands that stop and start all of the datacenter: with ZooKeeper, as in a loss of power
#   --to-hub          command that has producers of the topic write to the hub; it ends once they do
#   --pause           command that has them stop; it ends once none writes
#   --to-source       command that has them write to the datacenter again
#   --directory       where records that only one side has are saved, and the times of the drill are written
#   --deadline        seconds that each step may take (default 600)
#   --behind          offsets by which a copy may lag while producers write (default 1000); at the return it is 0
#
# PIPELINE names the program (default: pipeline). Exit code 0: the topic is back, and equal at both sides. Records that the
# hub had not got before the loss are in --directory alone then; the last line says so.
# 1: a step failed, or somebody wrote to a side that the topic had left; docs/mirror/failover.md says what to do then.
set -eu

fail() { echo "drill: $1" >&2; exit "${2:-1}"; }

name='' topic='' source='' hub='' mirror='' mirror_config='' stop='' start='' to_hub=true pause=true to_source=true directory='' deadline=600 behind=1000
while [ $# -gt 0 ]; do
    [ "$1" != --help ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0; }
    [ $# -ge 2 ] || fail "$1 needs a value; see --help" 2
    case $1 in
        --name) name=$2 ;; --topic) topic=$2 ;; --source) source=$2 ;; --hub) hub=$2 ;; --mirror) mirror=$2 ;;
        --mirror-config) mirror_config=$2 ;; --stop) stop=$2 ;; --start) start=$2 ;;
        --to-hub) to_hub=$2 ;; --pause) pause=$2 ;; --to-source) to_source=$2 ;;
        --directory) directory=$2 ;; --deadline) deadline=$2 ;;
        --behind) behind=$2 ;;
        *) fail "there is no option $1; see --help" 2 ;;
    esac
    shift 2
done
for needed in name topic source hub mirror mirror_config stop start directory; do
    eval "[ -n \"\$$needed\" ]" || fail "--$(echo $needed | tr _ -) is missing; see --help" 2
done
pipeline=${PIPELINE:-pipeline}
mkdir -p "$directory"
if ! (set -C; : >"$directory/times") 2>/dev/null; then  # one drill alone can make the file
    mirror_hub=$(cat "$directory/mirror-hub.pid" 2>/dev/null || true)
    fail "$directory has a former drill${mirror_hub:+, whose mirror, process $mirror_hub, may still run}; choose an empty directory"
fi
# now: seconds of a clock that nobody sets.
now() { cut -d. -f1 /proc/uptime; }
began=$(now)
returning=''
end_mirror() {
    [ -n "$returning" ] || return 0
    kill "$returning" 2>/dev/null || true
    wait "$returning" 2>/dev/null || true
    returning=''
}
trap end_mirror EXIT
trap 'exit 1' HUP INT TERM

# step WORDS...: notes the time of what was reached.
step() { printf '%5d s  %s\n' "$(($(now) - began))" "$*" | tee -a "$directory/times"; }

# until_done WHAT COMMAND...: repeats a command until it ends with 0, up to the deadline.
until_done() {
    what=$1; shift
    until=$(($(now) + deadline))
    until "$@" >"$directory/last" 2>&1; do
        [ "$(now)" -lt "$until" ] || { cat "$directory/last" >&2; fail "$what: not within $deadline s"; }
        sleep 1
    done
}

# is_equal CONFIG LAG BOOTSTRAP: all partitions that the topic has at BOOTSTRAP, the source of the copies, are equal at both
# sides, but for LAG offsets each that are not copied yet. Copies of a topic that was deleted are not compared.
is_equal() {
    $pipeline mirror verify --config "$1" --json "$topic" >"$directory/verified" || [ $? = 5 ] || return 1
    $pipeline topic describe --bootstrap "$3" --json "$topic" >"$directory/described" || return 1
    python3 -c '
import json, sys
verified, described = (json.load(open(name))["partitions"] for name in sys.argv[2:])
rows = [row for row in verified if "created again" not in (row["reason"] or "")]
print(*[(row["replica_topic"], row["replica_partition"], row["verdict"], row["lag"], row["reason"]) for row in rows], sep="\n")
uncopied = {row["partition"] for row in described} - {row["partition"] for row in rows}
print(*[f"partition {number} has no copy" for number in sorted(uncopied)], sep="\n")
same = {"equal": int(sys.argv[1]), "nothing to compare": 0}
sys.exit(bool(uncopied) or any(row["lag"] is None or row["lag"] > same.get(row["verdict"], -1) for row in rows))
' "$2" "$directory/verified" "$directory/described"
}

$pipeline mirror status --mirror "$mirror" --topic "$topic" >"$directory/before" 2>&1 ||
    { cat "$directory/before" >&2; rm "$directory/times"; fail "the mirror has trouble already; mend that before the drill"; }
step "the mirror copies $topic from $name, without trouble"

sh -c "$stop" || fail "--stop failed"
step "$name is lost"
# 5: the lost datacenter cannot say what is missing.
code=0
$pipeline mirror promote --bootstrap "$hub" --source-bootstrap "$name=$source" "$topic" >"$directory/promoted" 2>&1 || code=$?
[ "$code" = 0 ] || [ "$code" = 5 ] || { cat "$directory/promoted" >&2; fail "promote failed"; }
sh -c "$to_hub" || fail "--to-hub failed"
step "$topic is promoted: producers write to the hub"

sh -c "$start" || fail "--start failed"
until_done "$name is back" $pipeline mirror promote --bootstrap "$hub" --source-bootstrap "$name=$source" "$topic"
cp "$directory/last" "$directory/missing"
step "$name is back; $directory/missing lists the records that the hub lacks"
$pipeline mirror reverse --bootstrap "$hub" --source-bootstrap "$name=$source" --directory "$directory/only-$name" "$topic" \
    >"$directory/reversed" 2>&1 || { cat "$directory/reversed" >&2; fail "reverse failed"; }
step "$name keeps nothing that the hub lacks: such records are in $directory/only-$name"
cat >"$directory/mirror-hub.toml" <<EOF
destination.bootstrap.servers = "$source"
topics = ["$topic"]
http.listen = "127.0.0.1:0"

[[sources]]
name = "hub"
bootstrap.servers = "$hub"
EOF
$pipeline mirror start --config "$directory/mirror-hub.toml" >>"$directory/mirror-hub.log" 2>&1 &
returning=$!
echo "$returning" >"$directory/mirror-hub.pid"
until_done "$name has the records of the hub (see also $directory/mirror-hub.log)" is_equal "$directory/mirror-hub.toml" "$behind" "$hub"
step "$name has the records of the hub, and follows it"

# The way back is a failover without a loss: producers stop, the rest is copied, and the hub follows again.
sh -c "$pause" || fail "--pause failed"
until_done "$name has the last records of the hub" is_equal "$directory/mirror-hub.toml" 0 "$hub"
end_mirror
$pipeline mirror promote --bootstrap "$source" --source-bootstrap "hub=$hub" "$topic" >"$directory/returned" 2>&1 ||
    { cat "$directory/returned" >&2; fail "promote at $name failed"; }
sh -c "$to_source" || fail "--to-source failed"
step "producers write to $name again"
$pipeline mirror reverse --bootstrap "$source" --source-bootstrap "hub=$hub" --hub-name "$name" \
    --directory "$directory/only-hub" "$topic" >"$directory/reversed-hub" 2>&1 ||
    { cat "$directory/reversed-hub" >&2; fail "reverse at the hub failed"; }
until_done "the mirror copies $topic from $name" $pipeline mirror status --mirror "$mirror" --topic "$topic"
until_done "the hub has the records of $name" is_equal "$mirror_config" "$behind" "$source"
step "$topic is back at $name, and its replica in the hub is equal"
# Without --pause, or if it left a producer out: these records were acknowledged, and are in no topic any more.
[ -z "$(find "$directory/only-hub" -name '*.log')" ] ||
    fail "somebody wrote to the hub after the promotion at $name: these records are in $directory/only-hub alone"
[ -z "$(find "$directory/only-$name" -name '*.log')" ] ||
    step "records that the hub had not got before the loss are in $directory/only-$name alone: publish those that are still wanted"

"""`python -m bench [NAME ...]`: every benchmark, or those named, one after the other. Quote ratios, not times."""

import subprocess
import sys

BENCHMARKS = {
    "broker": "our broker beside Apache Kafka 4, same client",
    "codec": "wire codec beside kio and kafka-python",
    "columns": "batches opened as columns beside aiokafka",
    "log": "appends and recovery beside plain writes and reads",
}


def main() -> int:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    failed = []
    for name in names:
        print(f"== {name}: {BENCHMARKS[name]}", flush=True)
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"below their targets: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

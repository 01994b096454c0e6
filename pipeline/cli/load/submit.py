"""`pipeline load run` as a program for `spark-submit`, with the same options: see docs/load/jobs.md.

spark-submit --master yarn ... submit.py --config load.toml
"""

import sys

from pipeline.cli.entry import main

if __name__ == "__main__":
    sys.argv[1:1] = ["load", "run"]
    main()

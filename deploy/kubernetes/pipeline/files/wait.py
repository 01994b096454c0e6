"""Waits until a URL of this pod answers 200, for at most so many seconds: wait.py URL SECONDS.

Kubernetes calls this before it stops a broker. Ends with 0 in any case: the stop goes on when the time is over.
"""

import ssl
import sys
import time
import urllib.error
import urllib.request

INTERVAL_S = 2
TIMEOUT_S = 10


def main() -> None:
    """Wait, and say why on stderr at the end if it was in vain."""
    url, seconds = sys.argv[1], float(sys.argv[2])
    context = ssl.create_default_context()
    context.check_hostname = False  # of this pod itself, by its loopback address
    context.verify_mode = ssl.CERT_NONE
    end, why = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context):
                return
        except urllib.error.HTTPError as error:
            why = error.read(1000).decode(errors="replace")
        except OSError as error:
            why = str(error)
        time.sleep(INTERVAL_S)
    print(f"stopping all the same: {why}", file=sys.stderr)


main()

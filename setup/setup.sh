#!/bin/sh
# Finds a Python that is new enough and lets it build .venv; needs nothing but a shell.
set -eu
cd "$(dirname "$0")/.."

for candidate in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        exec "$candidate" setup/environment.py
    fi
done

found=$("${PYTHON:-python3}" --version 2>&1) || found="none"
cat >&2 <<MESSAGE
setup: Python 3.11 or newer is needed, found: $found
  on Debian or Ubuntu:  apt-get install python3 python3-venv
  one that lies elsewhere:  make setup PYTHON=/path/to/python3
MESSAGE
exit 4

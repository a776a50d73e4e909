#!/bin/sh
# Everything that only a GPU can prove, in at most eight minutes: see docs/device.md.
# usage: [OUT=folder] [PYTHON=python3] infra/device_check.sh [--parts kernels graphs] [--list]
set -u
cd "$(dirname "$0")/.." || exit 2
PYTHON="${PYTHON:-python3}"
test -x .venv/bin/python && test "$PYTHON" = python3 && PYTHON=.venv/bin/python
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 exec "$PYTHON" -m infra.device_check --out "${OUT:-device-check}" "$@"

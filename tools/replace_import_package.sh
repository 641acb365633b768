#!/usr/bin/env bash
# Rewrite a project's imports of torch and torchvision to msadapter.pytorch and msadapter.torchvision.
#
#   bash tools/replace_import_package.sh [Project Path]
#
# The originals of the changed files are kept in [Project Path].bak. Safe to run twice. PYTHON=... chooses Python.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    if [ -x "$root/.venv/bin/python" ]; then PYTHON=$root/.venv/bin/python; fi
fi
if ! command -v "$PYTHON" >/dev/null; then
    echo "Expected Python; found no command '$PYTHON'. Set PYTHON to the one that msadapter is installed in." >&2
    exit 2
fi
if [ -d "$root/src/msadapter" ]; then export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"; fi
if ! "$PYTHON" -c 'import libcst' 2>/dev/null; then
    echo "Expected libcst in $PYTHON; found none. Install it with: pip install msadapter, or: make venv" >&2
    exit 2
fi
exec "$PYTHON" -m msadapter.migrate.imports "$@"

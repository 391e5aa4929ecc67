# shellcheck shell=sh
# Sets $python to a Python that is new enough, or ends with one line. REPRISE_PYTHON names one to use instead.
python=
for candidate in "${REPRISE_PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14 python; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        python=$candidate
        break
    fi
    if [ "$candidate" = "${REPRISE_PYTHON:-}" ]; then
        break
    fi
done
if [ -z "$python" ]; then
    echo "deploy/$(basename -- "$0"): needs Python 3.11 or newer; ${REPRISE_PYTHON:-python3} is not. Install one, or name it in REPRISE_PYTHON." >&2
    exit 1
fi

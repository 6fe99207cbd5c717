#!/usr/bin/env bash
# Runs the whole test suite, after installing what it needs.
#
#   bash tests/run.sh                  everything but the tests marked slow (the embedded demo is included)
#   bash tests/run.sh --all            also the slow ones
#   bash tests/run.sh tests/reward -k teds     anything else goes to pytest
set -euo pipefail
KIT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$KIT"

ALL=0
declare -a ARGS=()
for argument in "$@"; do
  case $argument in
    -h|--help) sed -n '2,6p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//'; exit 0 ;;
    --all) ALL=1 ;;
    *) ARGS+=("$argument") ;;
  esac
done

PY=$(bash install_cpu.sh --dev --quiet | tail -n 1)
[ -x "$PY" ] || { echo "tests/run.sh: install_cpu.sh did not name a Python (got '$PY')" >&2; exit 1; }

# Byte code is what makes the many short processes of the suite start fast.
unset PYTHONDONTWRITEBYTECODE
export VERL_PLATFORM=${VERL_PLATFORM:-cpu} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false RAY_USAGE_STATS_ENABLED=0
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1

"$PY" -m ruff check .
"$PY" -m ruff format --check .
git ls-files '*.sh' | xargs "$(dirname "$PY")/shellcheck" -S warning
if [ $ALL = 1 ]; then
  exec "$PY" -m pytest "${ARGS[@]}"
fi
exec "$PY" -m pytest -m "not slow" "${ARGS[@]}"

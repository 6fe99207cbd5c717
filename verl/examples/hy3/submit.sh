#!/usr/bin/env bash
# Submit the Hy3 training as a Ray job: ships this folder and your exported settings to the cluster and starts the launcher there.
#
#   RAY_ADDRESS=http://HEAD:8265 MODEL_PATH=/shared/Hy3 DATA_DIR=/shared/data bash verl/examples/hy3/submit.sh [--dry-run] [--wait]
#       [--runtime-env FILE] [-- ARGUMENTS OF run_hy_v3_megatron.sh …]
#
#   --dry-run            print the runtime environment and the command; submit nothing
#   --wait               follow the job's log until it ends (default: return after the submission)
#   --runtime-env FILE   default: runtime_env.yaml beside this script
#
# Every variable that `run_hy_v3_megatron.sh --help` lists and you exported goes along, and those that HY3_FORWARD names
# (blank-separated). Paths must exist on the cluster's nodes: parquet and weights are not shipped.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
KIT=$(cd "$HERE/../../.." && pwd)
LAUNCHER=verl/examples/grpo_trainer/run_hy_v3_megatron.sh
die() { printf 'submit.sh: %s\n' "$*" >&2; exit 2; }

DRY_RUN=0 WAIT=0 RUNTIME_ENV=$HERE/runtime_env.yaml
declare -a REST=()
while [ $# -gt 0 ]; do
  case $1 in
    -h|--help) sed -n '2,/^set -euo/{/^set -euo/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --dry-run) DRY_RUN=1 ;;
    --wait) WAIT=1 ;;
    --runtime-env) [ $# -ge 2 ] || die "--runtime-env needs a file"; RUNTIME_ENV=$2; shift ;;
    --) shift; REST=("$@"); break ;;
    *) die "unknown argument '$1' (see --help)" ;;
  esac
  shift
done
[ -f "$RUNTIME_ENV" ] || die "no such file: $RUNTIME_ENV"
case ${RAY_ADDRESS:-} in
  http://*:* | https://*:*) ;;
  "") die "RAY_ADDRESS is not set: the job server of the cluster's head, e.g. http://10.0.0.1:8265" ;;
  *) die "RAY_ADDRESS=$RAY_ADDRESS must be http://HEAD:PORT of the job server (dashboard port, by default 8265)" ;;
esac
[ -n "${MODEL_PATH:-}" ] || die "MODEL_PATH is not set: the folder of Hy3 on the cluster's nodes"
for name in MODEL_PATH DATA_DIR TRAIN_FILES VAL_FILES OUTPUT_DIR; do
  case ${!name:-/} in /*) ;; *) die "$name=${!name} must be an absolute path: the job runs in another folder" ;; esac
done
[ -n "${DATA_DIR:-}${TRAIN_FILES:-}" ] || die "set DATA_DIR, or TRAIN_FILES and VAL_FILES, to paths on the cluster's nodes"
[ -n "${OUTPUT_DIR:-}" ] || die "OUTPUT_DIR is not set: without it, checkpoints would go to the job's folder, which Ray deletes"

PY=""
for candidate in "${PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "$KIT/.venv/bin/python" "$(command -v python3 || true)"; do
  [ -n "$candidate" ] && "$candidate" -c 'import ray, yaml' >/dev/null 2>&1 && { PY=$candidate; break; }
done
[ -n "$PY" ] || die "no Python with ray found; set PYTHON"

# On the cluster the launcher attaches to the cluster that runs the job.
NAMES=$(bash "$KIT/$LAUNCHER" --help | awk '/^  [A-Z][A-Z0-9_]* / {print $1}')
RUNTIME_JSON=$(cd "$KIT" && NAMES="$NAMES ${HY3_FORWARD:-}" "$PY" "$HERE/runtime_env.py" "$RUNTIME_ENV") || exit 2
COMMAND=(bash "$LAUNCHER" "${REST[@]}")
WAIT_FLAG=(--no-wait); [ $WAIT = 0 ] || WAIT_FLAG=()
if [ $DRY_RUN = 1 ]; then
  printf '%s\n\n' "$RUNTIME_JSON"
  printf 'ray job submit --address %s %s --runtime-env-json … -- ' "$RAY_ADDRESS" "${WAIT_FLAG[*]}"
  printf '%q ' "${COMMAND[@]}"; printf '\n'
  exit 0
fi
cd "$KIT"
exec "$PY" -m ray.scripts.scripts job submit --address "$RAY_ADDRESS" "${WAIT_FLAG[@]}" --runtime-env-json "$RUNTIME_JSON" -- "${COMMAND[@]}"

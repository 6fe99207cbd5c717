#!/usr/bin/env bash
# Installs the kit on a GPU host with CUDA 13.
#
#   USE_MEGATRON=0 USE_SGLANG=0 bash install_cu13.sh
#   bash install_cu13.sh --build-wheelhouse wheelhouse     # on a connected machine
#   bash install_cu13.sh --wheelhouse wheelhouse           # on the cluster
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=utils/install/common.sh
source "$here/utils/install/common.sh"

usage() {
    cat <<USAGE
Usage: [USE_MEGATRON=0|1] [USE_SGLANG=0] bash install_cu13.sh [options]

Checks the host (driver >= $(hyocr_host_bound nvidia_driver), CUDA >= $(hyocr_host_bound cuda), Python $(hyocr_host_bound python), $(hyocr_host_bound disk_gb) GB free),
installs the locked packages (requirements/gpu.txt) and verl/ in editable mode, compiles byte code once and ends with a
self-check that imports everything. Uses the active virtual or conda environment when it has a suitable Python, else
creates ./.venv. Nothing else on the host is changed.

Options:
  --wheelhouse DIR         install from DIR only, without a package index
  --build-wheelhouse DIR   download or build every wheel into DIR and stop (any machine with an index and the same Python
                           and platform; no GPU needed)
  --check-host             check the host and stop
  --skip-host-check        install although the host does not fit (building an image on a machine without GPU)
  --dev                    also requirements/dev.txt: pytest, ruff, shellcheck ...
  --dry-run                check the host, print the commands, change nothing
  --quiet                  print only warnings and failures
  -h, --help

Environment:
  USE_MEGATRON=1             also requirements/megatron.txt
  USE_SGLANG=1               refused: see the message
  PYTHON                     interpreter for the new environment, or the one of an existing environment
  HYOCR_INSTALLER=pip        do not use uv even where it is installed
  INSTALL_SYSTEM_PACKAGES=1  allow apt-get install of python3.X-venv where venv is missing (as root)

Exit code: 0 complete, 1 failed or the self-check found something missing, 2 bad usage, no suitable Python or a refused switch.
USAGE
}

# Prints what does not fit, one line each; notes go through hyocr_say.
host_problems() {
    local driver cuda="" toolkit="" python version
    if ! command -v nvidia-smi >/dev/null 2>&1; then
        echo "no nvidia-smi: no NVIDIA driver here (a container needs the NVIDIA container toolkit, --gpus all)"
    elif ! driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1 | head -n1) || [[ ! "$driver" =~ ^[0-9.]+$ ]]; then
        echo "nvidia-smi does not answer: $driver"
    else
        hyocr_say "driver $driver"
        hyocr_at_least "$driver" "$(hyocr_host_bound nvidia_driver)" || echo "driver $driver is older than $(hyocr_host_bound nvidia_driver)"
        cuda=$(nvidia-smi -q 2>/dev/null | sed -n 's/^CUDA Version *: *\([0-9.]*\).*/\1/p' | head -n1)
        if command -v nvcc >/dev/null 2>&1; then
            toolkit=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p' | head -n1)
        fi
        hyocr_say "CUDA: driver up to ${cuda:-unknown}, toolkit ${toolkit:-none}"
        if [[ -z "$cuda" ]] || ! hyocr_at_least "$cuda" "$(hyocr_host_bound cuda)"; then
            if [[ -n "$toolkit" ]] && hyocr_at_least "$toolkit" "$(hyocr_host_bound cuda)"; then
                hyocr_say "the driver's own CUDA is older: this works on data-centre GPUs with the cuda-compat package; the self-check will tell"
            else
                echo "CUDA ${cuda:-unknown} (driver) is older than $(hyocr_host_bound cuda): update the driver, or install the cuda-compat package and the toolkit"
            fi
        fi
    fi
    python=$(hyocr_active_python)
    if [[ -z "$python" ]]; then
        python=$(hyocr_find_python 2>/dev/null) || {
            echo "no suitable Python: $(hyocr_find_python 2>&1 >/dev/null | sed 's/^\[install\] error: //')"
            return 0
        }
    fi
    version=$(hyocr_python_version "$python")
    hyocr_say "Python $version ($python)"
    [[ "$version" == "$(hyocr_host_bound python | cut -d' ' -f1)" ]] ||
        hyocr_say "note: production images use Python $(hyocr_host_bound python | cut -d' ' -f1); $version works too"
}

locks=(requirements/gpu.txt)
HYOCR_ALWAYS_CHECK=1
skip_host=0
only_host=0
build=""
while (($#)); do
    case "$1" in
        --dev) locks+=(requirements/dev.txt) ;;
        --quiet) HYOCR_QUIET=1 ;;
        --dry-run) HYOCR_DRY_RUN=1 ;;
        --check-host) only_host=1 ;;
        --skip-host-check) skip_host=1 ;;
        --wheelhouse | --build-wheelhouse)
            (($# > 1)) || hyocr_die 2 "$1 needs a directory"
            if [[ "$1" == --wheelhouse ]]; then HYOCR_WHEELHOUSE=$2; else build=$2; fi
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *)
            usage >&2
            hyocr_die 2 "unknown option $1"
            ;;
    esac
    shift
done

for switch in USE_MEGATRON USE_SGLANG; do
    [[ "${!switch:-0}" =~ ^[01]$ ]] || hyocr_die 2 "$switch=${!switch}: use 0 or 1"
done
[[ "${USE_SGLANG:-0}" == 0 ]] ||
    hyocr_die 2 "USE_SGLANG=1: the pinned stack has no HunYuanVL rollout on SGLang; rollouts run on vLLM. Use USE_SGLANG=0"
if [[ "${USE_MEGATRON:-0}" == 1 ]]; then
    [[ -f "$here/requirements/megatron.txt" ]] ||
        hyocr_die 2 "USE_MEGATRON=1: this checkout has no requirements/megatron.txt, so no Megatron versions are known to work. Use USE_MEGATRON=0 (FSDP2)"
    locks+=(requirements/megatron.txt)
fi

if [[ -n "$build" ]]; then
    hyocr_build_wheelhouse "$build" "${locks[@]}"
    exit 0
fi
if [[ "$skip_host" == 0 ]]; then
    problems=$(host_problems)
    if [[ -n "$problems" ]]; then
        while IFS= read -r line; do printf '[install] host: %s\n' "$line" >&2; done <<<"$problems"
        hyocr_die 1 "this host does not fit (on a host without GPU use install_cpu.sh; --skip-host-check installs all the same)"
    fi
fi
[[ "$only_host" == 0 ]] || exit 0
hyocr_check_wheelhouse "${locks[@]}"
hyocr_ensure_environment
kind=gpu
[[ "$skip_host" == 0 ]] || kind=image
hyocr_install "$kind" "${locks[@]}"
printf '%s\n' "$HYOCR_PYTHON"

#!/usr/bin/env bash
# Installs the kit on a host without GPU: the demo, the tests, data preparation, scoring.
#
#   bash install_cpu.sh                 # into the active environment, else into ./.venv
#   bash install_cpu.sh --dev --quiet   # also what the tests need; prints nothing unless something fails
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=utils/install/common.sh
source "$here/utils/install/common.sh"

usage() {
    cat <<'USAGE'
Usage: bash install_cpu.sh [options]

Installs the locked packages (requirements/cpu.txt) and verl/ in editable mode. Uses the active virtual or conda
environment when it has a suitable Python, else creates ./.venv. Run again at any time: what is there stays.
The last line on stdout is the environment's python.

Options:
  --dev              also requirements/dev.txt: pytest, ruff, shellcheck ...
  --quiet            print only warnings and failures
  --check            run the full self-check (imports everything) even when nothing had to be installed
  --wheelhouse DIR   install from DIR only, without a package index
  --build-wheelhouse DIR   download or build every wheel into DIR and stop (needs an index, same Python, same platform)
  --dry-run          print the commands, change nothing
  -h, --help

Environment:
  PYTHON                     interpreter for the new environment, or the one of an existing environment
                             (default: python3.12, python3.11, python3)
  HYOCR_INSTALLER=pip        do not use uv even where it is installed
  INSTALL_SYSTEM_PACKAGES=1  allow apt-get install of python3.X-venv where venv is missing (as root)

pip's configuration (index, certificates, proxies) is honoured; uv is used first when it is there, pip when uv fails.
Exit code: 0 installed, 1 failed, 2 bad usage or no suitable Python.
USAGE
}

locks=(requirements/cpu.txt)
build=""
while (($#)); do
    case "$1" in
        --dev) locks+=(requirements/dev.txt) ;;
        --quiet) HYOCR_QUIET=1 ;;
        --check) HYOCR_ALWAYS_CHECK=1 ;;
        --dry-run) HYOCR_DRY_RUN=1 ;;
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

if [[ -n "$build" ]]; then
    hyocr_build_wheelhouse "$build" "${locks[@]}"
    exit 0
fi
hyocr_check_wheelhouse "${locks[@]}"
hyocr_ensure_environment
hyocr_install cpu "${locks[@]}"
printf '%s\n' "$HYOCR_PYTHON"

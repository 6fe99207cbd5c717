#!/usr/bin/env bash
# Starts this host's Ray node.  bash utils/ray/start_ray.sh local | NNODES INDEX   (--help lists everything)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=utils/install/common.sh
source "$here/../install/common.sh"
exec "$(hyocr_kit_python)" "$here/cluster.py" start "$@"

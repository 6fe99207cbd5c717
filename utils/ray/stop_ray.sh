#!/usr/bin/env bash
# Stops the Ray nodes that start_ray.sh started on this host, and no others.   (--help lists the options)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=utils/install/common.sh
source "$here/../install/common.sh"
exec "$(hyocr_kit_python)" "$here/cluster.py" stop "$@"

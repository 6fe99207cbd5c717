"""install_cu13.sh: what it refuses, what it accepts, with made-up nvidia-smi and nvcc."""

from __future__ import annotations

import shutil
import sys

import pytest

SMI = """
case "$*" in
  --query-gpu=driver_version*) echo "{driver}" ;;
  -q) echo "Driver Version                        : {driver}"; echo "CUDA Version                          : {cuda}" ;;
esac"""


def host(checkout, driver: str = "580.95.05", cuda: str = "13.0", toolkit: str | None = None):
    checkout.tool("nvidia-smi", SMI.format(driver=driver, cuda=cuda))
    # Always there: the real one of this host must not answer.
    checkout.tool("nvcc", f'echo "Cuda compilation tools, release {toolkit}, V{toolkit}.48"' if toolkit else "exit 1")
    return checkout.run("install_cu13.sh", "--check-host", PYTHON=sys.executable)


@pytest.mark.parametrize("driver", ["535.161.08", "535.161.10", "580.95.05"])
def test_fitting_hosts(checkout, driver):
    done = host(checkout, driver=driver)
    assert done.returncode == 0, done.stderr
    assert f"driver {driver}" in done.stderr


def test_old_cuda_in_the_driver_passes_with_a_new_toolkit(checkout):
    assert host(checkout, driver="535.161.08", cuda="12.2", toolkit="13.1").returncode == 0


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"driver": "535.161.07"}, "driver 535.161.07 is older than 535.161.08"),
        ({"driver": "470.57.02"}, "driver 470.57.02 is older"),
        ({"cuda": "12.9"}, "CUDA 12.9 (driver) is older than 13.0"),
        ({"cuda": "12.2", "toolkit": "12.9"}, "CUDA 12.2 (driver) is older than 13.0"),
        ({"driver": "NVIDIA-SMI has failed"}, "nvidia-smi does not answer: NVIDIA-SMI has failed"),
    ],
)
def test_hosts_that_do_not_fit(checkout, changes, words):
    done = host(checkout, **changes)
    assert done.returncode == 1 and words in done.stderr
    assert "--skip-host-check" in done.stderr


def minimal_path(checkout, *tools: str) -> str:
    """A PATH with nothing but the tools the scripts need: no nvidia-smi, no uv, no Python besides those named."""
    wanted = (
        "bash",
        "sed",
        "head",
        "cut",
        "sort",
        "dirname",
        "cat",
        "sha256sum",
        "mktemp",
        "awk",
        "df",
        "rm",
        "tail",
        *tools,
    )
    for name in wanted:
        if not (checkout.bin / name).exists():
            (checkout.bin / name).symlink_to(shutil.which(name))
    return str(checkout.bin)


def test_host_without_driver(checkout):
    done = checkout.run("install_cu13.sh", path=minimal_path(checkout), PYTHON=sys.executable)
    assert done.returncode == 1 and "no nvidia-smi" in done.stderr and "install_cpu.sh" in done.stderr


@pytest.mark.parametrize(
    "environment, words",
    [
        ({"USE_SGLANG": "1"}, "no HunYuanVL rollout on SGLang"),
        ({"USE_SGLANG": "yes"}, "USE_SGLANG=yes"),
        ({"USE_MEGATRON": "1"}, "no requirements/megatron.txt"),
    ],
)
def test_switches_are_refused_with_the_reason(checkout, environment, words):
    done = checkout.run("install_cu13.sh", **environment)
    assert done.returncode == 2 and words in done.stderr


def test_megatron_is_honoured_once_its_lock_file_exists(checkout, base_python):
    (checkout.root / "requirements/megatron.txt").write_text("nothing==1\n")
    done = checkout.run("install_cu13.sh", "--dry-run", "--skip-host-check", USE_MEGATRON="1", PYTHON=base_python)
    assert done.returncode == 0 and "requirements/megatron.txt" in done.stdout


@pytest.mark.parametrize("script", ["install_cu13.sh", "install_cpu.sh"])
def test_usage(checkout, script):
    help_ = checkout.run(script, "--help")
    assert help_.returncode == 0 and "--wheelhouse" in help_.stdout and "PYTHON" in help_.stdout
    bad = checkout.run(script, "--fast")
    assert bad.returncode == 2 and "unknown option --fast" in bad.stderr
    assert checkout.run(script, "--wheelhouse").returncode == 2


def fake_python(checkout, name: str, version: str) -> None:
    checkout.tool(name, f'[[ "$*" == *version_info* ]] && echo {version} || exit 1')


def test_python_of_the_wrong_version_is_refused_by_name(checkout):
    fake_python(checkout, "python3", "3.9")
    fake_python(checkout, "python3.12", "")
    done = checkout.run("install_cpu.sh", path=minimal_path(checkout))
    assert done.returncode == 2
    assert "python3 (3.9)" in done.stderr and "python3.12 (does not run)" in done.stderr and "3.12 3.11" in done.stderr
    fake_python(checkout, "mine", "3.13")
    done = checkout.run("install_cpu.sh", PYTHON=str(checkout.bin / "mine"))
    assert done.returncode == 2 and "is Python 3.13" in done.stderr
    done = checkout.run("install_cpu.sh", PYTHON="/nowhere/python")
    assert done.returncode == 2 and "does not run" in done.stderr


def test_missing_venv_module_names_the_package(checkout):
    """Debian without python3-venv: ensurepip cannot be imported."""
    checkout.tool(
        "python3.11",
        'case "$*" in *version_info*) echo 3.11 ;; *sys.executable*) echo "$0" ;; *) exit 1 ;; esac',
    )
    done = checkout.run("install_cpu.sh", path=minimal_path(checkout))
    assert done.returncode == 1
    assert "apt-get install python3.11-venv" in done.stderr and "INSTALL_SYSTEM_PACKAGES=1" in done.stderr
    assert not (checkout.root / ".venv").exists()


def test_conda_base_is_left_alone(checkout, tmp_path, base_python):
    done = checkout.run(
        "install_cpu.sh", "--dry-run", CONDA_PREFIX=str(tmp_path), CONDA_DEFAULT_ENV="base", PYTHON=base_python
    )
    assert done.returncode == 0 and str(checkout.root / ".venv") in done.stdout

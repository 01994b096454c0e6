"""Other versions of PySpark, each in an environment of its own below .cache."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark

ROOT = Path(__file__).parents[2]
INSTALL_TIMEOUT_S = 500


def python_with(version: str) -> str:
    """A Python with this PySpark, and all else of this environment."""
    if version == pyspark.__version__:
        return sys.executable
    directory = ROOT / ".cache" / f"pyspark-{version}"
    python = directory / "bin" / "python"
    ready = directory / ".installed"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(directory)], check=True)
        packages = directory / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run(
            [*install, "--target", str(packages), f"pyspark=={version}"], check=True, timeout=INSTALL_TIMEOUT_S
        )
        (packages / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n", encoding="utf-8")
        ready.touch()
    return str(python)

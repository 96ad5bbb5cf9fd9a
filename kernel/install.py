"""Build the compiled kernel into this environment, where cargo is there and its source is new.

Nothing depends on it: whatever goes wrong is said in one line, and Python serves.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
NAME: Final = "tardis-machine-kernel"
STAMP: Final = Path(sys.prefix) / ".kernel"
LOG: Final = HERE / "target" / "build.log"
# A machine without a network finds out soon.
NETWORK: Final = {"CARGO_NET_RETRY": "1", "CARGO_HTTP_TIMEOUT": "20"}


class BuildError(Exception):
    """Why there is no kernel."""


def main() -> None:
    """Install the kernel of this source, from the cache if it was built before."""
    digest = source_digest()
    if STAMP.exists() and STAMP.read_text() == digest and is_installed():
        return
    try:
        install(built(cache() / digest))
    except BuildError as error:
        if is_installed():  # one that was built from another source
            uv("uninstall", "--quiet", NAME)
        STAMP.unlink(missing_ok=True)
        print(f"No compiled kernel, Python serves: {error}")
    else:
        STAMP.write_text(digest)


def source_digest() -> str:
    """Name the source and the platform by a hash."""
    digest = hashlib.sha256(sysconfig.get_platform().encode())
    files = [HERE / "Cargo.toml", HERE / "pyproject.toml", *sorted(HERE.glob("src/**/*.rs"))]
    for path in files:
        digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def cache() -> Path:
    """Wheels that were built before, by this user."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tardis-machine" / "kernel"


def is_installed() -> bool:
    try:
        distribution(NAME)
    except PackageNotFoundError:
        return False
    return True


def built(folder: Path) -> Path:
    """Give the wheel in this folder of the cache; build it if it is not there."""
    wheels = sorted(folder.glob("*.whl"))
    if wheels:
        return wheels[0]
    if shutil.which("cargo") is None:
        raise BuildError("there is no cargo on the PATH (Rust 1.85 or newer makes replays faster)")
    print("Building the compiled kernel, once: about a minute", flush=True)
    wheels_dir = HERE / "target" / "wheels"
    shutil.rmtree(wheels_dir, ignore_errors=True)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    maturin = [Path(sys.prefix) / "bin" / "maturin", "build", "--release", "--out", wheels_dir]
    with LOG.open("wb") as log:
        try:
            result = subprocess.run(
                maturin, cwd=HERE, env=os.environ | NETWORK, stdout=log, stderr=log, check=False
            )
        except OSError as error:
            raise BuildError(str(error)) from error
    wheels = sorted(wheels_dir.glob("*.whl"))
    if result.returncode or not wheels:
        raise BuildError(f"the build failed, see {LOG.relative_to(HERE.parent)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{os.getpid()}.partial"
        shutil.copy(wheels[0], partial)
        return partial.rename(folder / wheels[0].name)
    except OSError:  # a home that cannot be written only costs another build
        return wheels[0]


def install(wheel: Path) -> None:
    if uv("install", "--quiet", "--no-deps", "--reinstall", str(wheel)):
        raise BuildError(f"{wheel.name} cannot be installed")


def uv(*arguments: str) -> int:
    """Run `uv pip` on this environment; gives its exit code."""
    found = shutil.which("uv") or str(Path(sys.prefix) / "bin" / "uv")
    command, *rest = arguments
    call: Sequence[str] = (found, "pip", command, "--python", sys.executable, *rest)
    return subprocess.run(call, check=False).returncode


if __name__ == "__main__":
    main()

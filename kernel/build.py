"""Build the compiled kernel: a hook of hatchling for wheels, a command for `make setup`.

TM_KERNEL decides, as it does when the library runs: `auto` builds the kernel where cargo can, and
goes on without it where not; `compiled` fails where cargo fails; `python` builds nothing.
"""

import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE: Final = Path(__file__).resolve().parent
CHOICE: Final = os.environ.get("TM_KERNEL", "").strip().lower() or "auto"
FILE: Final = "_kernel.pyd" if sys.platform == "win32" else "_kernel.abi3.so"
IN_PLACE: Final = HERE.parent / "src" / "tardis_machine" / FILE
LOG: Final = HERE / "target" / "build.log"
# A machine without a network finds out soon. Python's symbols are those of the interpreter.
ENVIRONMENT: Final = {
    "CARGO_NET_RETRY": "1",
    "CARGO_HTTP_TIMEOUT": "20",
    "PYO3_BUILD_EXTENSION_MODULE": "1",
    "PYO3_PYTHON": sys.executable,
}
CARGO: Final = ("cargo", "rustc", "--release", "--lib", "--crate-type", "cdylib")
LINKING: Final = (
    ("--", "-C", "link-arg=-undefined", "-C", "link-arg=dynamic_lookup")
    if sys.platform == "darwin"
    else ()
)
LIBRARY: Final = {"win32": "{}.dll", "darwin": "lib{}.dylib"}.get(sys.platform, "lib{}.so")


class BuildError(Exception):
    """The reason why there is no compiled kernel, on one line."""


class KernelBuildHook(BuildHookInterface[BuilderConfig]):
    """The hook that hatchling calls before it writes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the kernel to a wheel, or put it into the source of an editable installation."""
        if CHOICE == "python":
            return
        try:
            if version == "editable":
                build_in_place()
                return
            library = build()
        except BuildError as error:
            if CHOICE == "compiled":
                self.app.abort(f"No compiled kernel: {error}")
            self.app.display_warning(f"No compiled kernel, Python serves: {error}")
            return
        builder: Any = self.build_config.builder
        platform = builder.get_best_matching_tag().rpartition("-")[2]
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["force_include"][str(library)] = f"tardis_machine/{FILE}"


def main() -> None:
    """Build the kernel into this source tree; say on one line why that is not possible."""
    if CHOICE == "python":
        return
    try:
        build_in_place()
    except BuildError as error:
        if CHOICE == "compiled":
            sys.exit(f"No compiled kernel: {error}")
        print(f"No compiled kernel, Python serves: {error}")


def build_in_place() -> None:
    """Put the kernel of this source beside the Python; a stale one does not stay."""
    try:
        library = build()
    except BuildError:
        IN_PLACE.unlink(missing_ok=True)
        raise
    if not IN_PLACE.exists() or not filecmp.cmp(library, IN_PLACE, shallow=False):
        replace(library, IN_PLACE)


def build() -> Path:
    """Return the library of this source: from the cache, or compiled by cargo and cached."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("it needs CPython with the GIL")
    cached = cache() / source_digest() / FILE
    if cached.exists() and is_own(cached):
        return cached
    compiled = compile_library()
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        replace(compiled, cached)
    except OSError:  # a home that cannot be written only costs another build
        return compiled
    return cached


def cache() -> Path:
    """Return the folder of the libraries that this user has built."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tardis-machine" / "kernel"


def is_own(path: Path) -> bool:
    """Return whether this user wrote the file: a cache may belong to another, as under sudo."""
    return sys.platform == "win32" or path.stat().st_uid == os.getuid()


def source_digest() -> str:
    """Return a hash that names the source, the flags and the platform."""
    digest = hashlib.sha256(sysconfig.get_platform().encode())
    for path in (HERE / "Cargo.toml", Path(__file__), *sorted(HERE.glob("src/**/*.rs"))):
        digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def replace(source: Path, target: Path) -> None:
    """Copy a file in one step: a process that has the old one open keeps it."""
    partial = target.with_name(f"{FILE}.{os.getpid()}.partial")
    shutil.copyfile(source, partial)
    partial.replace(target)


def compile_library() -> Path:
    """Run cargo; raise BuildError with its reason where it fails."""
    if shutil.which("cargo") is None:
        raise BuildError("there is no cargo on the PATH (Rust 1.85 or newer makes replays faster)")
    print("Building the compiled kernel, once: about a minute", flush=True)
    target = HERE / "target"
    try:
        result = subprocess.run(
            [*CARGO, "--target-dir", target, *LINKING],
            cwd=HERE,
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        target.mkdir(exist_ok=True)
        LOG.write_bytes(result.stdout)
    except OSError as error:
        raise BuildError(str(error)) from error
    if result.returncode:
        reason = reason_in(result.stdout.decode(errors="replace"))
        raise BuildError(f"{reason or f'cargo exits with {result.returncode}'} (full log: {LOG})")
    library = target / "release" / LIBRARY.format("tardis_machine_kernel")
    if not library.exists():
        raise BuildError(f"cargo built no {library}")
    return library


def reason_in(output: str) -> str:
    """Return the reason that cargo, rustc or rustup prints, on one line.

    That is the first error with its last cause, or with what rustup advises.
    """
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("error")]
    if not errors:
        return "".join(lines[-1:])
    error, after = lines[errors[0]], lines[errors[0] + 1 :]
    causes = [cause for head, cause in pairwise(after) if head == "Caused by:"]
    advice = [line for line in after if line.startswith("help:")]
    more = causes[-1:] or advice[:1] or (after[:1] if error.endswith(":") else [])
    return ": ".join([error.removeprefix("error: ").rstrip(".:"), *more])


if __name__ == "__main__":
    main()

"""Directories that settings name: made private, refused where other users could plant files."""

import errno
import logging
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from tardis_machine.config.section import ConfigError

log = logging.getLogger(__name__)

_PRIVATE: Final = 0o700
_ROOT: Final = 0
_warned: Final[set[tuple[Path, str]]] = set()


class DefaultDirectory(NamedTuple):
    """A directory in this user's home, or below what a variable of the XDG specification names."""

    variable: str
    fallback: str
    name: str

    def path(self, flag: str) -> Path:
        """Return the directory's path; ConfigError for `flag` where there is no home directory."""
        return self._base(flag) / "tardis-machine" / self.name

    def claim(self, flag: str) -> Path:
        """Make the directory if need be and return it; ConfigError if other users can change it.

        One that this user owns, and that others may only read, is tightened to 0700.
        """
        base = self._base(flag)
        path = base / "tardis-machine" / self.name
        _make(flag, path)
        # A user who can replace a directory above can replace this one.
        if not _owners(base) <= {os.geteuid(), _ROOT} or _mode(base) & stat.S_IWOTH:
            reason = f"is in {base}, which other users may change ({_described(base)})"
            raise _refused(flag, path, reason)
        check_own(flag, path.parent, forgives_group=True)
        check_own(flag, path)
        return path

    def _base(self, flag: str) -> Path:
        try:
            named = Path(os.environ.get(self.variable, "")).expanduser()
            base = named if named.is_absolute() else Path.home() / self.fallback
        except RuntimeError:
            base = Path()
        if not base.is_absolute():
            raise ConfigError(flag, None, "this user has no home directory: name a directory")
        return base


def claim(flag: str, path: Path) -> Path:
    """Make a directory that was named if need be; ConfigError if everyone may write to it.

    Another owner, or a group that may write, is a warning: shared caches and volumes of Kubernetes
    are like that.
    """
    _make(flag, path)
    mode = _mode(path)
    if mode & stat.S_IWOTH:
        raise ConfigError(
            flag,
            str(path),
            f"everyone may write to it (mode {mode:04o}), and so replace what is in it: name a "
            f"subdirectory, {path / 'tardis-machine'} for example, which is made for this user "
            f"alone, or run chmod o-w {path}",
        )
    if _owners(path) != {os.geteuid()} or mode & stat.S_IWGRP:
        warn_once(path, "other users may change this directory", found=_described(path), by=flag)
    return path


def check_own(flag: str, path: Path, *, forgives_group: bool = False) -> None:
    """Tighten a directory to 0700; ConfigError if another user owns it or may write to it.

    With `forgives_group`, a group that may write is only shut out.
    """
    mode = _mode(path)
    shut_out = stat.S_IWOTH if forgives_group else stat.S_IWOTH | stat.S_IWGRP
    if _owners(path) != {os.geteuid()} or mode & shut_out:
        raise _refused(flag, path, f"may be changed by other users ({_described(path)})")
    wanted = mode & ~stat.S_IWGRP if forgives_group else _PRIVATE
    if mode & ~wanted & 0o777:
        try:
            path.chmod(wanted)
        except OSError as error:
            # On a read-only mount no user can write to the directory anyway.
            log.debug("directory cannot be made private", extra={"error": str(error)})


def make_private(path: Path) -> None:
    """Make a directory that only its owner may enter, and those above it that are missing."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(_PRIVATE, exist_ok=True)
    path.mkdir(_PRIVATE, exist_ok=True)  # raises where it is a file


def open_directory(path: Path | str, *, dir_fd: int | None = None) -> int:
    """Open a directory; OSError with ELOOP where the path ends in a symbolic link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, dir_fd=dir_fd)
    except NotADirectoryError:
        if stat.S_ISLNK(os.lstat(path, dir_fd=dir_fd).st_mode):
            raise OSError(errno.ELOOP, "expected no symbolic link", str(path)) from None
        raise


def unlink_below(top: Path, path: Path) -> None:
    """Remove a file below `top`; OSError with ELOOP where a link is on the way from there."""
    *folders, name = path.relative_to(top).parts
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            above, fd = fd, open_directory(folder, dir_fd=fd)
            os.close(above)
        os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


def warn_once(path: Path, event: str, **details: object) -> None:
    """Log a warning about a directory, but only once in this process."""
    if (path, event) not in _warned:
        _warned.add((path, event))
        log.warning(event, extra={"directory": str(path), **details})


def _make(flag: str, path: Path) -> None:
    try:
        make_private(path)
    except OSError as error:
        reason = f"expected a directory that can be written: {error.strerror}"
        raise ConfigError(flag, str(path), reason) from None


def _refused(flag: str, path: Path, reason: str) -> ConfigError:
    return ConfigError(
        flag, str(path), f"the default directory {reason}: remove it, or name another directory"
    )


def _owners(path: Path) -> set[int]:
    """Return the owner of a directory and, where the path is a link, the link's."""
    return {path.stat().st_uid, path.lstat().st_uid}


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _described(path: Path) -> str:
    owners = ", ".join(str(owner) for owner in sorted(_owners(path)))
    return f"owner {owners}, mode {_mode(path):04o}"

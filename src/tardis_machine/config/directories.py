"""Directories of settings: created private, refused if other users could put files there."""

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
    """A default directory, in the user's home or below the directory of an XDG variable."""

    variable: str
    fallback: str
    name: str

    def path(self, flag: str) -> Path:
        """Return the path without creating it; raise ConfigError for `flag` if there is no home."""
        return self._base(flag) / "tardis-machine" / self.name

    def claim(self, flag: str) -> Path:
        """Create the directory if it is missing; raise ConfigError if other users can change it.

        The mode of a directory that this user owns and others may only read is set to 0700.
        """
        base = self._base(flag)
        path = base / "tardis-machine" / self.name
        _create(flag, path)
        # A user who can replace a directory above can replace this one.
        if not _owners(base) <= {os.geteuid(), _ROOT} or _mode(base) & stat.S_IWOTH:
            reason = f"is in {base}, which other users may change ({_owner_and_mode(base)})"
            raise _default_refused(flag, path, reason)
        check_own(flag, path.parent, forgives_group=True)
        check_own(flag, path)
        return path

    def _base(self, flag: str) -> Path:
        try:
            xdg_base = Path(os.environ.get(self.variable, "")).expanduser()
            base = xdg_base if xdg_base.is_absolute() else Path.home() / self.fallback
        except RuntimeError:
            base = Path()
        if not base.is_absolute():
            raise ConfigError(flag, None, "this user has no home directory: name a directory")
        return base


def claim(flag: str, path: Path) -> Path:
    """Create a directory that a setting names; raise ConfigError if everyone may write to it.

    Another owner or a group that may write only causes a warning: shared caches and volumes of
    Kubernetes have these.
    """
    _create(flag, path)
    mode = _mode(path)
    if mode & stat.S_IWOTH:
        raise ConfigError(
            flag,
            str(path),
            f"everyone may write to it (mode {mode:04o}) and replace its files: name a "
            f"subdirectory, {path / 'tardis-machine'} for example, which is created for this user "
            f"alone, or run chmod o-w {path}",
        )
    if _owners(path) != {os.geteuid()} or mode & stat.S_IWGRP:
        warn_once(
            path, "other users may change this directory", found=_owner_and_mode(path), by=flag
        )
    return path


def check_own(flag: str, path: Path, *, forgives_group: bool = False) -> None:
    """Set a directory's mode to 0700; raise ConfigError if another user owns or may write to it.

    With `forgives_group`, only the group's permission to write is removed, without an error.
    """
    mode = _mode(path)
    forbidden = stat.S_IWOTH if forgives_group else stat.S_IWOTH | stat.S_IWGRP
    if _owners(path) != {os.geteuid()} or mode & forbidden:
        raise _default_refused(
            flag, path, f"may be changed by other users ({_owner_and_mode(path)})"
        )
    private_mode = mode & ~stat.S_IWGRP if forgives_group else _PRIVATE
    if mode & ~private_mode & 0o777:
        try:
            path.chmod(private_mode)
        except OSError as error:
            # On a read-only mount no user can write to the directory anyway.
            log.debug("directory cannot be made private", extra={"error": str(error)})


def make_private(path: Path) -> None:
    """Create a directory and its missing parents with mode 0700; OSError if the path is a file."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        directory.mkdir(_PRIVATE, exist_ok=True)
    path.mkdir(_PRIVATE, exist_ok=True)  # raises if the path is a file


def open_directory(path: Path | str, *, dir_fd: int | None = None) -> int:
    """Return a descriptor of a directory; raise OSError ELOOP if it is a symbolic link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, dir_fd=dir_fd)
    except NotADirectoryError:
        if stat.S_ISLNK(os.lstat(path, dir_fd=dir_fd).st_mode):
            raise OSError(errno.ELOOP, "expected no symbolic link", str(path)) from None
        raise


def unlink_below(top: Path, path: Path) -> None:
    """Remove a file below `top`; raise OSError ELOOP if a folder between them is a link."""
    *folders, name = path.relative_to(top).parts
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            parent_fd, fd = fd, open_directory(folder, dir_fd=fd)
            os.close(parent_fd)
        os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


def warn_once(path: Path, event: str, **details: object) -> None:
    """Log a warning about a directory, once per directory and event in this process."""
    if (path, event) not in _warned:
        _warned.add((path, event))
        log.warning(event, extra={"directory": str(path), **details})


def _create(flag: str, path: Path) -> None:
    try:
        make_private(path)
    except OSError as error:
        reason = f"cannot be created: {error.strerror}; expected a directory that can be written"
        raise ConfigError(flag, str(path), reason) from None


def _default_refused(flag: str, path: Path, reason: str) -> ConfigError:
    return ConfigError(
        flag, str(path), f"the default directory {reason}: remove it, or name another directory"
    )


def _owners(path: Path) -> set[int]:
    """Return the owner of a directory and, if the path is a link, the owner of the link."""
    return {path.stat().st_uid, path.lstat().st_uid}


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _owner_and_mode(path: Path) -> str:
    owners = ", ".join(str(owner) for owner in sorted(_owners(path)))
    return f"owner {owners}, mode {_mode(path):04o}"

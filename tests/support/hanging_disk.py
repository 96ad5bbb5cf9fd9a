"""A disk that takes nothing for a while."""

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Final

import pytest

_STALL: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void stall(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    if (length <= 4 || memcmp(path + length - 4, ".seg", 4) != 0) return;
    while (access(getenv("STALLED"), F_OK) == 0) {
        close(open(getenv("REACHED"), O_CREAT | O_WRONLY, 0600));
        usleep(10000);
    }
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    stall(fd);
    ssize_t (*real)(int, const struct iovec *, int) = dlsym(RTLD_NEXT, "writev");
    return real(fd, parts, count);
}

int fdatasync(int fd) {
    stall(fd);
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return real(fd);
}
"""


class StallingDisk:
    """A library for the environment of a process, and the paths that stall its journal.

    While `stalled` exists, writes and syncs of segments hang, in this process and its children.
    The first call that hangs makes `reached`.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("gcc") is None:
            pytest.skip("needs gcc")
        source, library = folder / "stall.c", folder / "stall.so"
        self.stalled, self.reached = folder / "stalled", folder / "reached"
        source.write_text(_STALL)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.environ = {
            "LD_PRELOAD": str(library),
            "STALLED": str(self.stalled),
            "REACHED": str(self.reached),
        }


class HangingDisk:
    """Lets no entry of the journal through until it is freed; `call` is where it hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str = "writev") -> None:
        self.reached, self.free = threading.Event(), threading.Event()
        real = getattr(os, call)

        def hanging(*args: object) -> object:
            self.reached.set()
            assert self.free.wait(60)
            return real(*args)

        monkeypatch.setattr(os, call, hanging)

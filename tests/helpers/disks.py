"""Disks that are full: one that fails on demand, and a small real one."""

import errno
import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest


class FullDisk:
    """Lets so many of the `calls` (owner, name) through; then every one raises ENOSPC."""

    def __init__(self, monkeypatch, spare, calls):
        self.spare, self.inside = spare, False
        for owner, name in calls:
            monkeypatch.setattr(owner, name, self.failing(getattr(owner, name)))

    def failing(self, call):
        def wrapped(*args, **kwargs):
            if self.inside:  # what one call writes on the way counts as one
                return call(*args, **kwargs)
            self.spare -= 1
            if self.spare < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.inside = True
            try:
                return call(*args, **kwargs)
            finally:
                self.inside = False

        return wrapped


@contextmanager
def small_disk(folder, options):
    """A file system of its own, where this machine lets us mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a file system here; the tests with FullDisk stand in")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)

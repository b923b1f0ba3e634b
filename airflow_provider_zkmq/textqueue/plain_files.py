"""Plain files, opened as what they are: not through a symbolic link, and for their owner alone when they are made."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from .errors import HostileFile

#: The mode of what is made: payloads may be secret. What is there already keeps its own.
MODE: Final = 0o600


_LINK: Final = {errno.ELOOP, errno.EMLINK}


def open_plain(path: str | os.PathLike[str], flags: int, mode: int = MODE, *, folder: int | None = None) -> int:
    """A descriptor of a plain file, by a path or by a name in an open folder.

    A symbolic link is not followed: whoever may write to the folder could lead it anywhere. A pipe or a device, which
    might block for ever, is not waited for. Raises `HostileFile` for either, and `OSError`.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in _LINK:
            msg = f"{os.fspath(path)} is a symbolic link, which is not followed: name the file itself"
            raise HostileFile(msg) from None
        if error.errno != errno.ENXIO:
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    msg = f"{os.fspath(path)} is no plain file"
    raise HostileFile(msg)


def read_plain(path: str | os.PathLike[str], most: int, *, folder: int | None = None) -> bytes:
    """What a plain file holds. Raises `HostileFile`, also for one of more than `most` bytes, and `OSError`."""
    with os.fdopen(open_plain(path, os.O_RDONLY, folder=folder), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        msg = f"{os.fspath(path)} has more than {most:,} bytes"
        raise HostileFile(msg)
    return data


def replace_plain(path: Path, data: bytes, mode: int = MODE, *, folder: int | None = None) -> None:
    """Write a file whole, beside it first: who reads meanwhile sees the old one or the new one.

    A symbolic link that has its name is replaced, not followed.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = open_plain(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, folder=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask takes away
            file.write(data)
        os.replace(beside, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(beside, dir_fd=folder)
        raise

"""The lock file that every write to one SQLite store waits at, in whatever process.

SQLite's own busy wait sleeps and tries again, and starves: of four processes one made nearly all commits. A
blocking `flock` wakes whoever waits and shares evenly (MEASURED §4). What it lacks is a bound, so nobody whose
caller must get an answer blocks in it: see `kernel.store.sqlite_group`, where a helper thread does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading

from kernel.errors import StoreUnavailable


class LockFile:
    """One descriptor of this process on the lock file (DECISIONS detail 9).

    The lock belongs to the descriptor, so one thread may take it and another give it back. A child must not
    inherit it: as long as any copy of the descriptor is open the lock is held, even if its holder was killed.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.refusal: str | None = None
        """Why nobody in this process can ever take it: who may only read the store needs no lock (ops-readonly)."""
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            text = f"store lock {path}: {error.strerror}"
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StoreUnavailable(text) from None
            self._descriptor = -1
            self.refusal = text
        self._mutex = threading.Lock()
        self._blocked = False
        self._closed = False

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        with self._mutex:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            if self.refusal is not None:
                raise StoreUnavailable(self.refusal)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError as error:
                raise StoreUnavailable(f"store lock: {error.strerror}") from None
        return True

    def acquire(self) -> bool:
        """Wait for the lock, however long; False when the file was closed meanwhile or can not be locked."""
        with self._mutex:
            if self._closed or self.refusal is not None:
                return False
            self._blocked = True
        locked = True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except OSError:
            locked = False
        return self._unblocked() and locked

    def _unblocked(self) -> bool:
        with self._mutex:
            self._blocked = False
            if self._closed:
                os.close(self._descriptor)
            return not self._closed

    def release(self) -> None:
        """Give the lock back."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the descriptor. While a thread blocks on it the number must not be given to another file, so then
        that thread closes it."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            if not self._blocked and self.refusal is None:
                os.close(self._descriptor)

    def forget_in_child(self) -> None:
        """After a fork: close this process's copy. Unlocking here would unlock the parent."""
        if not self._closed:
            self._closed = True
            if self.refusal is None:
                os.close(self._descriptor)

"""The process tree: one parent that forks workers, dispatchers and companions, and only parents (dc-supervisor-forks).

    cli ─ boot ─ tree ─ slots ──fork──> child_main ─ a role, named by a string and resolved after the fork
                  │        └─ pidfd, link, log socket, output pipe: everything is read in one selectors loop
                  ├─ embedded    the Valkey server of the embedded mode
                  ├─ guardian    ends every child if this process is killed
                  └─ control     status, stop, kill_child, stacks over a unix socket

Rules that hold everywhere here: the parent has one thread, opens no store and imports no driver (dc-fork-safety);
handlers of OS signals write a byte, the loop decides; a child is known by its pidfd and nothing is ever sent to a
number read from a file; no lock, queue or event is shared with a process that may be killed.
"""

"""What holds for every test of this project; each plugin's module says what it watches.

No `faulthandler_timeout`: its watchdog is a thread, and a forking process must have only one.
"""

from __future__ import annotations

pytest_plugins = (
    "tests.support.bytecode",
    "tests.support.examples",
    "tests.support.workers",
    "tests.support.dispositions",
    "tests.support.programs",
    "tests.support.requirements_index",
    "tests.support.crash_marks",
    "tests.support.figures",
    "tests.support.leftovers",
    "tests.support.mongo_server",
    "tests.support.redis_servers",
)

"""Python with which a program that a test starts hears Ctrl-C.

A shell starts its background jobs with SIGINT ignored. A test run among them would start its programs likewise.
"""

from __future__ import annotations

HEAR_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"

"""What makes a started program react to Ctrl-C.

A shell starts background jobs with SIGINT ignored, and a test run in the background would pass that on.
"""

from __future__ import annotations

HEAR_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"

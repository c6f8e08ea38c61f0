"""What only a process of its own shows: what the server imports, and what it does to the limit of open files."""

from __future__ import annotations

import subprocess
import sys

LIMITS = """
import resource
from voxlane.server.commands.serve import SPARE_DESCRIPTORS, allow_descriptors
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
allow_descriptors(100)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (100 + SPARE_DESCRIPTORS, hard)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
allow_descriptors(100)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128, 128)
allow_descriptors(1)
"""

IMPORTS = """
import sys
from voxlane.server import cli
from voxlane.server.api import app
from voxlane.server.commands import chat, doctor, perplexity, say, serve, talk, transcribe, voices
from voxlane.server.audio import decode_child
assert "torch" not in sys.modules
"""


def test_the_server_imports_no_torch_and_the_limit_of_open_files_follows_the_connections() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS + LIMITS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

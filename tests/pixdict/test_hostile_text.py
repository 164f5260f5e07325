"""What the directory or a caller says forges no line of pixdict's log, and shows no personal data in it."""

import subprocess
import sys

LOGS = r"""
import logging
from pixdict.redaction import guard_logs

guard_logs()
refused = ValueError("key 529.982.247-25\x1b]0;owned\x07\r\nERROR all is well")
logging.getLogger("pixdict.bridge").warning("attempt %d of %s: %s", 1, "CreateEntry", refused)
"""


def test_text_of_strangers_forges_no_line_of_the_log() -> None:
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, check=True, timeout=60)
    said = r"key [cpf]\x1b]0;owned\x07\r\nERROR all is well"
    assert done.stderr == f"attempt 1 of CreateEntry: {said}\n"

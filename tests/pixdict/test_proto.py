"""The code of proto/ is the code that proto/ makes."""

import subprocess
import sys

from tests.architecture.source import ROOT

MADE = ROOT / "src" / "pixdict" / "proto"


def test_the_committed_code_is_what_the_proto_files_make(tmp_path):
    subprocess.run([ROOT / "tools" / "proto", sys.executable, tmp_path], check=True, timeout=50)
    made = {path.name: path.read_text() for path in (tmp_path / "pixdict" / "proto").iterdir()}
    committed = {path.name: path.read_text() for path in MADE.glob("*_pb2*")}
    assert made == committed, "run `make proto` and commit the result"

"""The AWS stack (CDK only): one construct per capability, composed by `training_stack`."""

import os
import sys
from pathlib import Path

# The CDK's library runs in Node: the one installed beside this Python, before any other on the PATH.
_NODE = Path(sys.executable).parent / "node"
if _NODE.exists():
    os.environ.setdefault("JSII_NODE", str(_NODE))

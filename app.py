"""CDK entry point, as cdk.json names it; the stack stands in stacks/training_stack.py."""

from __future__ import annotations

import sys

import aws_cdk as cdk

from blackwell.findings import FindingsError
from stacks.asset import AssetError
from stacks.synth import add_stack

if __name__ == "__main__":
    app = cdk.App()
    try:
        add_stack(app)
    except (FindingsError, AssetError) as error:
        sys.exit(f"app: {error}")
    app.synth()

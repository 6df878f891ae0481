"""CDK entry point: reads the settings, builds the stack, turns cdk-nag on."""

from __future__ import annotations

import sys
from pathlib import Path

import aws_cdk as cdk

from blackwell.findings import FindingsError
from stacks import nag
from stacks.asset import AssetError
from stacks.settings import STACK_NAME, load_settings
from stacks.training_stack import BlackwellTrainingStack


def main() -> int:
    app = cdk.App()
    try:
        settings = load_settings(app.node.get_all_context())
        BlackwellTrainingStack(app, STACK_NAME, settings=settings)
    except (FindingsError, AssetError) as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 1
    nag.turn_on(app)
    app.synth()
    return 0


if __name__ == "__main__":
    sys.exit(main())

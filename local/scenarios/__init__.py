"""Scenarios: runs of the deployed workflow with faults, each with the end that it must come to.

`matrix.json` is the committed matrix, `runner` carries scenarios out side by side and checks what must hold for every
run, `soak` makes random ones. `python -m local.scenarios` runs them and writes build/scenarios.json.
"""

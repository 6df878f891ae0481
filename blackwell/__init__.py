"""BlackwellTrainingStack's shared core: job specs, plans, verdicts, telemetry and reports.

Pure Python: nothing here calls AWS (but `client`), nothing imports torch, so a lambda can import it quickly.
"""

"""What looks after a run while it trains: hangs, diverging losses, memory, the control file, the end of a plan."""

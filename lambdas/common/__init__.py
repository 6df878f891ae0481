"""What every function shares: its environment, AWS clients, the run table, documents in S3, training jobs, logging."""

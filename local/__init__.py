"""The embedded AWS: starts ministack in process, mends what it gets wrong, hosts training jobs and builds beside it."""

"""The stack's Lambda functions, one folder each; `handler.py` parses, calls blackwell, has one effect, returns."""

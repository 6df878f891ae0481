"""What SNS takes as a message's subject."""

from __future__ import annotations

_SUBJECT_MAX = 99  # SNS: less than 100 ASCII characters


def subject(text: str) -> str:
    """The text as a subject: ASCII, cut to what SNS takes."""
    return text.encode("ascii", "replace").decode()[:_SUBJECT_MAX]

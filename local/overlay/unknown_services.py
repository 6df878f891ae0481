"""A call to a service that ministack does not have is refused without loading every service model of botocore.

Stock ministack (1.5.33) loads all of them to learn whether the name is an AWS service: about 400 MB and 3 seconds.
"""

from __future__ import annotations

from functools import cache

from ministack.core import router

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams

SIGNING_NAMES = frozenset({"ce", "servicequotas", "access-analyzer", "aws-marketplace", "tagging", "execute-api"})
"""Signing names that differ from the service's own name in botocore, of services a stack like ours may call."""


@cache
def known_services() -> frozenset[str]:
    """Names of botocore's services: a listing of folders, no model is read."""
    import botocore.session

    return frozenset(botocore.session.get_session().get_available_services()) | SIGNING_NAMES


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the test for AWS service names."""
    seams.take(router, "_is_aws_service_name")
    router._is_aws_service_name = lambda scope_name: scope_name in known_services()

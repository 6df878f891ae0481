"""AWS clients, one per service and function instance."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal, overload

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from types_boto3_codebuild import CodeBuildClient
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_ecr import ECRClient
    from types_boto3_lambda import LambdaClient
    from types_boto3_logs import CloudWatchLogsClient
    from types_boto3_pricing import PricingClient
    from types_boto3_s3 import S3Client
    from types_boto3_sagemaker import SageMakerClient
    from types_boto3_service_quotas import ServiceQuotasClient
    from types_boto3_sns import SNSClient
    from types_boto3_stepfunctions import SFNClient

PRICING_REGION = "us-east-1"
"""The Price List has endpoints in few regions, and answers for all of them."""
_CONFIG = Config(retries={"mode": "standard", "max_attempts": 5}, connect_timeout=5, read_timeout=30)


@overload
def client(service: Literal["codebuild"]) -> CodeBuildClient: ...
@overload
def client(service: Literal["dynamodb"]) -> DynamoDBClient: ...
@overload
def client(service: Literal["ecr"]) -> ECRClient: ...
@overload
def client(service: Literal["lambda"]) -> LambdaClient: ...
@overload
def client(service: Literal["logs"]) -> CloudWatchLogsClient: ...
@overload
def client(service: Literal["pricing"]) -> PricingClient: ...
@overload
def client(service: Literal["s3"]) -> S3Client: ...
@overload
def client(service: Literal["sagemaker"]) -> SageMakerClient: ...
@overload
def client(service: Literal["service-quotas"]) -> ServiceQuotasClient: ...
@overload
def client(service: Literal["sns"]) -> SNSClient: ...
@overload
def client(service: Literal["stepfunctions"]) -> SFNClient: ...
def client(service: Any) -> Any:
    """The client for a service, made at first use: a function only pays for the services that it calls."""
    return _client(service)


@cache
def _client(service: str) -> Any:
    region = PRICING_REGION if service == "pricing" else None
    return boto3.client(service, region_name=region, config=_CONFIG)  # type: ignore[call-overload]


def error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def error_message(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", error))

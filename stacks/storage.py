"""Where a run's things are kept: two buckets (artifacts, checkpoints) and the run table."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3
from constructs import Construct

from blackwell.names import TABLE_ATTEMPT_KEY, TABLE_RUN_KEY
from stacks.encryption import Encryption
from stacks.nag import acknowledge
from stacks.settings import Settings

TABLE_TTL = "expires_at"
"""Attribute with the Unix time after which a row of the run table may go."""
INCOMPLETE_UPLOAD_DAYS = 7

_NO_ACCESS_LOGS = (
    "Server access logs would need a third bucket that outlives the stack; who started a run and every request of the "
    "product to these buckets stands in the run table and in the functions' logs, and CloudTrail data events are the "
    "account's choice."
)


class Storage(Construct):
    """`artifacts` (specs, plans, reports, datasets), `checkpoints` (checkpoints, models) and `run_table`."""

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings, encryption: Encryption) -> None:
        super().__init__(scope, construct_id)
        self._settings = settings
        self._encryption = encryption
        self.artifacts = self._bucket("Artifacts", event_bridge=True)
        self.checkpoints = self._bucket("Checkpoints", event_bridge=False)
        self.run_table = dynamodb.Table(
            self,
            "Runs",
            partition_key=dynamodb.Attribute(name=TABLE_RUN_KEY, type=dynamodb.AttributeType.STRING),
            sort_key=dynamodb.Attribute(name=TABLE_ATTEMPT_KEY, type=dynamodb.AttributeType.NUMBER),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            encryption=dynamodb.TableEncryption.CUSTOMER_MANAGED
            if encryption.key
            else dynamodb.TableEncryption.AWS_MANAGED,
            encryption_key=encryption.key,
            time_to_live_attribute=TABLE_TTL,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )

    def _bucket(self, name: str, *, event_bridge: bool) -> s3.Bucket:
        settings, key = self._settings, self._encryption.key
        bucket = s3.Bucket(
            self,
            name,
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            versioned=True,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="incomplete-uploads",
                    abort_incomplete_multipart_upload_after=cdk.Duration.days(INCOMPLETE_UPLOAD_DAYS),
                ),
                s3.LifecycleRule(
                    id="replaced-versions",
                    noncurrent_version_expiration=cdk.Duration.days(settings.old_checkpoint_days),
                    expired_object_delete_marker=True,
                ),
            ],
            # Emptied by the teardown resource, so that CloudFormation can delete them.
            removal_policy=cdk.RemovalPolicy.RETAIN if settings.retain_data else cdk.RemovalPolicy.DESTROY,
        )
        if event_bridge:  # by property: the L2's switch would add a Lambda function of CDK's own
            resource = bucket.node.default_child
            assert isinstance(resource, s3.CfnBucket)
            resource.notification_configuration = s3.CfnBucket.NotificationConfigurationProperty(
                event_bridge_configuration=s3.CfnBucket.EventBridgeConfigurationProperty(event_bridge_enabled=True)
            )
        acknowledge(bucket, "AwsSolutions-S1", _NO_ACCESS_LOGS)
        return bucket

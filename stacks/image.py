"""The training image: an immutable ECR repository and the CodeBuild project that builds, proves and pushes the image.

`tag` is the content's hash: present in the repository means nothing is to be built.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from stacks import image_content
from stacks.encryption import Encryption
from stacks.nag import acknowledge
from stacks.permission import Permission, allow, key_use, own_logs
from stacks.python_function import log_retention
from stacks.registries import registry_account, registry_host
from stacks.settings import Settings

BUILDSPEC = "container/buildspec.yml"
IMAGES_PREFIX = "images/"
"""In the artifacts bucket: what is in each image, by its tag."""
IMAGES_KEPT = 20
BUILD_TIMEOUT = cdk.Duration.hours(3)
"""A Transformer Engine that has to be compiled takes more than an hour."""


class Image(Construct):
    """`repository`, `project` and `tag`."""

    def __init__(
        self, scope: Construct, construct_id: str, *, settings: Settings, encryption: Encryption, artifacts: s3.IBucket
    ) -> None:
        super().__init__(scope, construct_id)
        base = settings.base_image
        arguments = {
            "BASE_REPOSITORY": base.repository,
            "BASE_TAG": base.tag,
            "TRANSFORMER_ENGINE": base.transformer_engine,
        }
        content = image_content.stage(arguments)
        self.tag = content.tag
        self.repository = ecr.Repository(
            self,
            "Repository",
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            image_scan_on_push=True,
            encryption=ecr.RepositoryEncryption.KMS if encryption.key else ecr.RepositoryEncryption.AES_256,
            encryption_key=encryption.key,
            empty_on_delete=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,
            lifecycle_rules=[
                ecr.LifecycleRule(
                    rule_priority=1, tag_status=ecr.TagStatus.UNTAGGED, max_image_age=cdk.Duration.days(1),
                    description="untagged images are left over from broken pushes",
                ),
                ecr.LifecycleRule(rule_priority=2, max_image_count=IMAGES_KEPT, description="older images are rebuilt when needed"),
            ],
        )  # fmt: skip
        source = s3_assets.Asset(self, "Source", path=str(content.path), asset_hash=content.tag)
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            retention=log_retention(settings),
            encryption_key=encryption.key,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        self.role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"))
        contents = f"{IMAGES_PREFIX}{self.tag}/sbom.json"
        permissions = self._permissions(source, encryption, base.registry)
        permissions.append(
            Permission(
                "ListOfContents",
                ("s3:PutObject",),
                (artifacts.arn_for_objects(f"{IMAGES_PREFIX}*"),),
                why="One document per image, named by its tag, so that a new image needs no new permission.",
            )
        )
        allow(self.role, permissions)
        self.project = codebuild.Project(
            self,
            "Project",
            description="Builds the training image, runs its self-test, pushes it",
            source=codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            build_spec=codebuild.BuildSpec.from_source_filename(BUILDSPEC),
            role=self.role.without_policy_updates(),  # CDK would add logs:CreateLogGroup and rights on report groups
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_8_0,
                compute_type=codebuild.ComputeType.LARGE,
                privileged=True,
            ),
            environment_variables={
                name: codebuild.BuildEnvironmentVariable(value=value)
                for name, value in {
                    **arguments,
                    "BASE_REGISTRY": base.registry or registry_host(self),
                    "REPOSITORY_URI": self.repository.repository_uri,
                    "REPOSITORY_NAME": self.repository.repository_name,
                    "IMAGE_TAG": self.tag,
                    "SBOM_BUCKET": artifacts.bucket_name,
                    "SBOM_KEY": contents,
                }.items()
            },
            cache=codebuild.Cache.local(codebuild.LocalCacheMode.DOCKER_LAYER),
            encryption_key=encryption.key,
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=self.log_group)),
            timeout=BUILD_TIMEOUT,
            grant_report_group_permissions=False,
        )
        self.project.node.add_dependency(self.role)
        acknowledge(
            self.project, "AwsSolutions-CB3",
            "Building a Docker image needs the privileged mode; the project builds only our own source, from an asset "
            "that only a deployment can change.",
        )  # fmt: skip
        if not encryption.key:
            acknowledge(
                self.project, "AwsSolutions-CB4",
                "The build has no artifacts to encrypt: its only output is the image, encrypted in ECR; setting `kms` "
                "uses the stack's own key.",
            )  # fmt: skip

    def _permissions(self, source: s3_assets.Asset, encryption: Encryption, registry: str | None) -> list[Permission]:
        stack = cdk.Stack.of(self)
        pull = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
        push = ("ecr:InitiateLayerUpload", "ecr:UploadLayerPart", "ecr:CompleteLayerUpload", "ecr:PutImage")
        permissions = [
            own_logs(self.log_group),
            Permission(
                "Source",
                ("s3:GetObject", "s3:GetObjectVersion"),
                (source.bucket.arn_for_objects(source.s3_object_key),),
            ),
            Permission(
                "Login",
                ("ecr:GetAuthorizationToken",),
                ("*",),
                why="The action has no resource; the token gives only what the role may do besides.",
            ),
            Permission("OwnImages", (*pull, *push, "ecr:DescribeImages"), (self.repository.repository_arn,)),
        ]
        if registry is None:
            account = registry_account(self)
            permissions.append(
                Permission(
                    "BaseImages",
                    pull,
                    (stack.format_arn(service="ecr", account=account, resource="repository", resource_name="*"),),
                    why="Read only, in AWS's own registry of Deep Learning Containers, which also holds the layers' parents.",
                )
            )
        if encryption.key:
            permissions.append(key_use(encryption.key.key_arn))
        return permissions

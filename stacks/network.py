"""A network of the stack's own for the jobs, where settings ask for one: private subnets, no way to the internet.

Jobs reach AWS through VPC endpoints only. The functions stay outside: they call nothing but AWS's public APIs.
"""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.encryption import Encryption
from stacks.python_function import log_retention
from stacks.settings import Settings

INTERFACE_ENDPOINTS = {
    "EcrApi": ec2.InterfaceVpcEndpointAwsService.ECR,
    "EcrDocker": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Monitoring": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_MONITORING,
    "Sts": ec2.InterfaceVpcEndpointAwsService.STS,
}
"""What a job calls besides S3, which has a gateway endpoint."""


class Network(Construct):
    """`environment` tells the functions what CreateTrainingJob needs; empty without `vpc`."""

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings, encryption: Encryption) -> None:
        super().__init__(scope, construct_id)
        self.environment: dict[str, str] = {}
        self.job_group: ec2.SecurityGroup | None = None
        if settings.vpc is None:
            return
        vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(settings.vpc.cidr),
            **_zones(settings.vpc.availability_zones),
            nat_gateways=0,
            restrict_default_security_group=False,  # by a Lambda function of CDK's own; nothing uses that group
            subnet_configuration=[
                ec2.SubnetConfiguration(name="Jobs", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=20)
            ],
        )
        self.job_group = jobs = self._job_group(vpc)
        self._flow_logs(vpc, settings, encryption)
        self._endpoints(vpc, jobs)
        self.environment = {
            "SUBNETS": ",".join(subnet.subnet_id for subnet in vpc.isolated_subnets),
            "SECURITY_GROUPS": jobs.security_group_id,
        }

    def _job_group(self, vpc: ec2.Vpc) -> ec2.SecurityGroup:
        """Instances of a job talk freely with each other (EFA needs all traffic, both ways, within the group)."""
        group = ec2.SecurityGroup(
            self, "Jobs", vpc=vpc, description="Instances of training jobs", allow_all_outbound=False
        )
        group.add_ingress_rule(group, ec2.Port.all_traffic(), "EFA and NCCL between the instances of a job")
        group.add_egress_rule(group, ec2.Port.all_traffic(), "EFA and NCCL between the instances of a job")
        group.add_egress_rule(
            ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "AWS, through the endpoints; there is no other way"
        )
        return group

    def _endpoints(self, vpc: ec2.Vpc, jobs: ec2.SecurityGroup) -> None:
        vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)
        group = ec2.SecurityGroup(
            self, "Endpoints", vpc=vpc, description="VPC endpoints for training jobs", allow_all_outbound=False
        )
        group.add_ingress_rule(jobs, ec2.Port.tcp(443), "Training jobs")
        for name, service in INTERFACE_ENDPOINTS.items():
            vpc.add_interface_endpoint(name, service=service, security_groups=[group], open=False)

    def _flow_logs(self, vpc: ec2.Vpc, settings: Settings, encryption: Encryption) -> None:
        group = logs.LogGroup(
            self,
            "FlowLogs",
            retention=log_retention(settings),
            encryption_key=encryption.key,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        role = iam.Role(self, "FlowLogsRole", assumed_by=iam.ServicePrincipal("vpc-flow-logs.amazonaws.com"))
        vpc.add_flow_log(
            "Rejected",
            destination=ec2.FlowLogDestination.to_cloud_watch_logs(group, role),
            traffic_type=ec2.FlowLogTrafficType.REJECT,
        )


def _zones(given: int | tuple[str, ...]) -> dict[str, Any]:
    return {"max_azs": given} if isinstance(given, int) else {"availability_zones": list(given)}

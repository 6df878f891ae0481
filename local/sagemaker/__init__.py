"""SageMaker training, which ministack lacks: the API as strict as AWS's, and a host that really runs the containers."""

from __future__ import annotations

from local.overlay.context import OverlayContext


def install(context: OverlayContext) -> None:
    """Adds the service, its Step Functions integration, and the controls of its plans and quotas.

    Controls: POST `/_local/sagemaker/plan` (see `plans.PlanStore.put`), POST `/_local/sagemaker/limit`
    {"quota": "ml.c7i.2xlarge for training job usage", "value": 0}.
    """
    from ministack.services import stepfunctions

    from local.faults import engine_of
    from local.sagemaker.api import SageMakerApi

    api = SageMakerApi(context, engine_of(context))
    context.register_service(
        "sagemaker",
        api.handle,
        target_prefixes=["SageMaker."],
        host_pattern=r"sagemaker\.",
        credential_scope="sagemaker",
        reset=api.reset,
    )
    stepfunctions._AWS_SDK_SERVICE_MAP["sagemaker"] = {"target_prefix": "SageMaker", "protocol": "json"}
    stepfunctions._AWS_SDK_ERROR_PREFIX["sagemaker"] = "SageMaker"

    def put_plan(body):  # type: ignore[no-untyped-def]
        with context.scope():
            return api.plans.put(body)

    context.route("POST", "sagemaker/plan", put_plan)
    context.route("POST", "sagemaker/limit", lambda body: api.limits.update({body["quota"]: int(body["value"])}))
    context.on_stop(api.host.kill_everything)

#!/usr/bin/env bash
# Builds the training image, lets it prove itself, pushes it once. Started by CodeBuild in the root of the source.
# The tag is the hash of the content, so a tag that is already there is this very image, and there is nothing to do.
set -euo pipefail
: "${REPOSITORY_URI:?}" "${REPOSITORY_NAME:?}" "${IMAGE_TAG:?}" "${SBOM_BUCKET:?}" "${SBOM_KEY:?}"
: "${BASE_REGISTRY:?}" "${BASE_REPOSITORY:?}" "${BASE_TAG:?}" "${TRANSFORMER_ENGINE:?}"
image="$REPOSITORY_URI:$IMAGE_TAG"

# Digest of our tag; status 1 when there is no such image, 2 when ECR could not be asked.
digest_of_tag() {
  local answer
  if answer=$(aws ecr describe-images --repository-name "$REPOSITORY_NAME" --image-ids imageTag="$IMAGE_TAG" \
    --query 'imageDetails[0].imageDigest' --output text 2>&1); then
    printf '%s\n' "$answer"
  elif [[ $answer == *ImageNotFound* ]]; then
    return 1
  else
    printf '%s\n' "$answer" >&2
    return 2
  fi
}

# Logs in to a private ECR registry, in the region that its host names; any other registry is public.
login() {
  local host=$1 region
  [[ $host == *.dkr.ecr.*.amazonaws.com* ]] || return 0
  region=${host#*.dkr.ecr.}
  region=${region%%.amazonaws.com*}
  aws ecr get-login-password --region "$region" | docker login --username AWS --password-stdin "$host"
}

status=0
digest=$(digest_of_tag) || status=$?
case $status in
  0)
    echo "image: $IMAGE_TAG is already in the repository, digest $digest"
    exit 0
    ;;
  1) echo "image: $IMAGE_TAG is missing, building it from $BASE_REGISTRY/$BASE_REPOSITORY:$BASE_TAG" ;;
  *) exit "$status" ;;
esac

login "${REPOSITORY_URI%%/*}"
login "$BASE_REGISTRY"

# An attestation beside the image would make the tag an index of manifests; SageMaker runs an image, not an index.
export BUILDX_NO_DEFAULT_ATTESTATIONS=1
docker build \
  --build-arg BASE_REGISTRY="$BASE_REGISTRY" \
  --build-arg BASE_REPOSITORY="$BASE_REPOSITORY" \
  --build-arg BASE_TAG="$BASE_TAG" \
  --build-arg TRANSFORMER_ENGINE="$TRANSFORMER_ENGINE" \
  --file container/Dockerfile --tag "$image" .

echo "image: self-test"
docker run --rm --entrypoint python "$image" container/selftest.py

echo "image: list of what is in it"
docker run --rm --entrypoint python "$image" container/sbom.py >sbom.json
aws s3api put-object --bucket "$SBOM_BUCKET" --key "$SBOM_KEY" --body sbom.json --content-type application/json >/dev/null

docker push "$image"
echo "image: pushed $IMAGE_TAG, digest $(digest_of_tag)"

{{/* slipway.checks: stops with every rule that a combination of values breaks. The schema checks single values. */}}
{{- define "slipway.checks" -}}
{{- $problems := list }}
{{- $values := .root.Values }}
{{- range $key, $pool := .pools }}
{{- $own := list }}
{{- with $pool }}
{{- /* 63 is Kubernetes' limit, and the longest name made of it ends in -prepare-0123456789a. */}}
{{- if gt (len .name) 43 }}
{{- $own = append $own (printf "the name %s must have at most 43 characters, got %d; try fullnameOverride" .name (len .name)) }}
{{- end }}
{{- if and (eq .models.store "hostPath") (not .models.hostPath) }}
{{- $own = append $own "models.hostPath must be a folder of the node with store hostPath, got none" }}
{{- end }}
{{- if and (eq .models.store "url") (not .models.url) }}
{{- $own = append $own "models.url must be given with store url, got none; try s3://bucket/folder" }}
{{- end }}
{{- if and .prepare.exports (has .models.store (list "url" "image")) }}
{{- $own = append $own (printf "prepare.exports must be empty with store %s, got %d; try store claim" .models.store (len .prepare.exports)) }}
{{- end }}
{{- if and .prepare.exports (eq .prepare.by "job") (ne .models.store "claim") }}
{{- $own = append $own (printf "models.store must be claim where a job prepares for all pods, got %s; try prepare.by pod" .models.store) }}
{{- end }}
{{- if and .prepare.exports (eq .prepare.by "job") (gt (int .gpu.count) 0) .prepare.gpu }}
{{- $own = append $own "prepare.by must be pod with GPUs, got job, whose pod would wait for a GPU that the waiting servers hold; try by: pod, where one replica prepares for all, or prepare.gpu: false" }}
{{- end }}
{{- if and (eq .workload "StatefulSet") (ne .models.store "local") }}
{{- $own = append $own (printf "models.store must be local with a StatefulSet, got %s; try workload Deployment" .models.store) }}
{{- end }}
{{- if and .gpu.computeCapability (eq (int .gpu.count) 0) }}
{{- $own = append $own (printf "gpu.count must be 1 or more with a compute capability, got 0 with %s" .gpu.computeCapability) }}
{{- end }}
{{- if ne .autoscaling.by "none" }}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) }}
{{- $own = append $own (printf "autoscaling.minReplicas must be at most maxReplicas, got %d and %d" (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) }}
{{- end }}
{{- if and (eq (int .autoscaling.minReplicas) 0) (or (ne .autoscaling.by "keda") (not (or .autoscaling.triggers .autoscaling.jobs))) }}
{{- $own = append $own (printf "autoscaling.minReplicas must be at least 1 without KEDA and a trigger of your own, got 0 with %s: the queue that calls for replicas is in the replicas; try autoscaling.jobs, which asks the gateway, or autoscaling.triggers" .autoscaling.by) }}
{{- end }}
{{- if and .autoscaling.jobs (or (ne .autoscaling.by "keda") (not $values.gateway.enabled) (and $values.gateway.pools (not (has $key $values.gateway.pools)))) }}
{{- $own = append $own (printf "autoscaling.jobs must be 0 without KEDA and a gateway that calls this pool, got %v with %s; try autoscaling.by keda and gateway.enabled" .autoscaling.jobs .autoscaling.by) }}
{{- end }}
{{- if and (ne .autoscaling.by "keda") (or .autoscaling.triggers .autoscaling.fallback .autoscaling.authenticationRef) }}
{{- $own = append $own (printf "autoscaling.by must be keda with triggers, fallback or authenticationRef, got %s" .autoscaling.by) }}
{{- end }}
{{- if gt (int .computed.stabilization) 3600 }}
{{- $own = append $own (printf "timing.longestJob and autoscaling.stabilization must be at most 3600 with autoscaling, got %d and %d: Kubernetes waits no longer before it takes replicas away; try autoscaling.by none" (int .timing.longestJob) (int .autoscaling.stabilization)) }}
{{- end }}
{{- if not (or .autoscaling.inFlight .autoscaling.pendingRequests .autoscaling.queueComputeRatio .autoscaling.jobs) }}
{{- $own = append $own "autoscaling must have a target above 0, got none; try inFlight 2" }}
{{- end }}
{{- end }}
{{- if and (eq .workload "Deployment") (eq (int .rollout.maxSurge) 0) (eq (int .rollout.maxUnavailable) 0) }}
{{- $own = append $own "rollout.maxSurge or maxUnavailable must be above 0, got 0 and 0" }}
{{- end }}
{{- $limit := get (.resources.limits | default dict) "memory" | toString }}
{{- if regexMatch "^[0-9]+[MG]i$" $limit }}
{{- $mib := mul (regexFind "^[0-9]+" $limit | int) (ternary 1024 1 (hasSuffix "Gi" $limit)) }}
{{- if le $mib (int .computed.sharedMemoryMiB) }}
{{- $own = append $own (printf "resources.limits.memory must be above the shared memory, which counts towards it, got %s and %dMi; try fewer sharedMemory.instances" $limit (int .computed.sharedMemoryMiB)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $pool.sticky $values.ingress.enabled (not $values.ingress.nginx) }}
{{- $own = append $own "sticky must be false behind an ingress that is not nginx, got true; try gatewayApi.envoy" }}
{{- end }}
{{- if and $pool.sticky $values.gatewayApi.enabled (not $values.gatewayApi.envoy) }}
{{- $own = append $own "sticky must be false behind a gateway without a policy for it, got true; try gatewayApi.envoy" }}
{{- end }}
{{- range $own }}{{ $problems = append $problems (printf "pool %s: %s" $key .) }}{{ end }}
{{- end }}
{{- with $values.gateway }}
{{- if .enabled }}
{{- if and (not .database.secret) (or (eq .role "split") (gt (int .replicas) 1)) }}
{{- $problems = append $problems (printf "gateway.database.secret must be given with role split or more than one replica, got none with %s and %d: SQLite serves one process; try role all and replicas 1, or a secret with the URL of a PostgreSQL" .role (int .replicas)) }}
{{- end }}
{{- if and (not .contents.url) (or (eq .role "split") (gt (int .replicas) 1)) }}
{{- $problems = append $problems (printf "gateway.contents.url must be given with role split or more than one replica, got none with %s and %d: pods do not share a folder; try s3://bucket/prefix" .role (int .replicas)) }}
{{- end }}
{{- with .workers.autoscaling }}
{{- if and .enabled (ne $values.gateway.role "split") }}
{{- $problems = append $problems "gateway.workers.autoscaling.enabled must be false with role all, which has no workers, got true; try role split" }}
{{- end }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- $problems = append $problems (printf "gateway.workers.autoscaling.minReplicas must be at most maxReplicas, got %d and %d" (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- end }}
{{- range .pools }}
{{- if not (hasKey $.pools .) }}
{{- $problems = append $problems (printf "gateway.pools must be of %s, got %s" (keys $.pools | sortAlpha | join ", ") .) }}
{{- end }}
{{- end }}
{{- range list "gateway" "gateway-worker" }}
{{- if hasKey $values.pools . }}
{{- $problems = append $problems (printf "pools must not have the name of the gateway's own workloads, got %s" .) }}
{{- end }}
{{- end }}
{{- if and .ingress.enabled (not .ingress.host) }}
{{- $problems = append $problems "gateway.ingress.host must be given, got none" }}
{{- end }}
{{- if and .route.enabled (or (not .route.host) (not .route.parentRefs)) }}
{{- $problems = append $problems "gateway.route.host and gateway.route.parentRefs must be given, got none; try parentRefs [{name: GATEWAY}]" }}
{{- end }}
{{- end }}
{{- end }}
{{- with $values }}
{{- if and .ingress.enabled (not .ingress.host) }}
{{- $problems = append $problems "ingress.host must be given, got none" }}
{{- end }}
{{- if and .ingress.enabled .ingress.nginx (not .ingress.tlsSecret) }}
{{- $problems = append $problems "ingress.tlsSecret must be given with nginx, which speaks gRPC over TLS only, got none" }}
{{- end }}
{{- if and .ingress.enabled .ingress.grpc.enabled (not .ingress.nginx) (not .ingress.grpc.serviceAnnotations) }}
{{- $problems = append $problems "ingress.grpc.serviceAnnotations must tell a controller that is not nginx to speak HTTP/2 without TLS to gRPC's port, got none; try traefik.ingress.kubernetes.io/service.serversscheme: h2c, or ingress.grpc.enabled: false" }}
{{- end }}
{{- if and .gatewayApi.enabled (or (not .gatewayApi.host) (not .gatewayApi.parentRefs)) }}
{{- $problems = append $problems "gatewayApi.host and gatewayApi.parentRefs must be given, got none; try parentRefs [{name: GATEWAY}]" }}
{{- end }}
{{- if and .tls.mutual (not .tls.secret) }}
{{- $problems = append $problems "tls.secret must be given with mutual, got none" }}
{{- end }}
{{- end }}
{{- if $problems }}{{ fail (printf "\n  %s" (join "\n  " $problems)) }}{{ end }}
{{- end }}

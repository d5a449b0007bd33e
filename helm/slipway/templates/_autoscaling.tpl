{{/*
How replicas go: after `stabilization` seconds without need for them, then one at a time, each with the time of the
longest job to finish. They come at once, for nobody should wait for caution.
*/}}
{{- define "slipway.behavior" -}}
scaleDown:
  stabilizationWindowSeconds: {{ .computed.stabilization }}
  policies:
    - { type: Pods, value: 1, periodSeconds: 60 }
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - { type: Percent, value: 100, periodSeconds: 60 }
    - { type: Pods, value: 2, periodSeconds: 60 }
{{- end }}

{{/*
The replicas of a workload. Under an autoscaler an upgrade states what runs now: without a number Kubernetes would take a
workload that had one before back to one replica. Where manifests are rendered without a cluster, no number is stated.
*/}}
{{- define "slipway.replicas" -}}
{{- if eq .pool.autoscaling.by "none" -}}
{{ .pool.replicas }}
{{- else -}}
{{- $live := lookup "apps/v1" .kind .root.Release.Namespace .name | default dict }}
{{- with (get $live "spec" | default dict) }}{{ .replicas }}{{ end }}
{{- end }}
{{- end }}

{{/* The targets in use: metric for the HPA, query for KEDA (labels as the ServiceMonitor gives them), target. */}}
{{- define "slipway.targets" -}}
{{- $own := printf "{namespace=%q,service=%q}" .root.Release.Namespace (printf "%s-pods" .pool.name) }}
{{- /* Of requests that wait, pipelines hold some in their instances, where slipway_requests_running counts them too. */}}
{{- $queued := printf "nv_inference_pending_request_count%s" $own }}
{{- $held := printf "slipway_requests_waiting%s" $own }}
{{- with .pool.autoscaling }}
{{- if .inFlight }}
- name: in-flight
  metric: slipway:pod_in_flight
  query: sum(sum by (pod, model) ({{ $queued }}) + sum by (pod, model) (slipway_requests_running{{ $own }})) or sum({{ $queued }})
  target: {{ .inFlight | quote }}
  type: AverageValue
{{- end }}
{{- if .pendingRequests }}
- name: pending-requests
  metric: slipway:pod_pending_requests
  query: sum({{ $queued }}) + (sum({{ $held }}) or vector(0))
  target: {{ .pendingRequests | quote }}
  type: AverageValue
{{- end }}
{{- if .queueComputeRatio }}
- name: queue-compute-ratio
  metric: slipway:pod_queue_compute_ratio
  query: sum(rate(nv_inference_queue_duration_us{{ $own }}[1m])) / clamp_min(sum(rate(nv_inference_compute_infer_duration_us{{ $own }}[1m])), 1)
  target: {{ .queueComputeRatio | quote }}
  type: Value
{{- end }}
{{- if .jobs }}
- name: jobs
  query: {{ include "slipway.gatewayJobs" (dict "root" $.root "models" .jobModels) }}
  target: {{ .jobs | quote }}
  type: AverageValue
{{- end }}
{{- end }}
{{- end }}

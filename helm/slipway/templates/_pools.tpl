{{/*
slipway.pools: the pools of the release as YAML, name -> settings. The settings are the values' own with a pool's
on top, and `name`, `key` and `computed` (see _computed.tpl). Every template takes its pools from here, so a value
that breaks a rule (see _checks.tpl) stops each of them.
*/}}
{{- define "slipway.pools" -}}
{{- $shared := pick .Values "image" "workload" "replicas" "models" "prepare" "onStop" "timing" "sharedMemory" "responseCacheMiB" "limits" "gpu" "resources" "autoscaling" "sticky" "address" "arguments" "env" "rollout" "disruption" "spread" "nodeSelector" "tolerations" "affinity" "priorityClass" "podLabels" "podAnnotations" "volumes" "volumeMounts" "initContainers" "service" "test" }}
{{- $fullname := include "slipway.fullname" . }}
{{- $pools := dict }}
{{- range $key, $own := .Values.pools | default (dict "default" dict) }}
{{- $pool := deepCopy $shared }}
{{- include "slipway.overlay" (dict "base" $pool "over" ($own | default dict)) }}
{{- $_ := set $pool "key" $key }}
{{- $_ := set $pool "name" (ternary (printf "%s-%s" $fullname $key) $fullname (not (empty $.Values.pools))) }}
{{- $_ := set $pool "computed" (include "slipway.computed" $pool | fromYaml) }}
{{- $_ := set $pools $key $pool }}
{{- end }}
{{- include "slipway.checks" (dict "root" . "pools" $pools) }}
{{- $pools | toYaml }}
{{- end }}

{{/* Lays a map over another, in place. (sprig's mergeOverwrite passes over false, 0 and empty values.) */}}
{{- define "slipway.overlay" -}}
{{- range $key, $value := .over }}
{{- if and (kindIs "map" $value) (kindIs "map" (get $.base $key)) }}
{{- include "slipway.overlay" (dict "base" (get $.base $key) "over" $value) }}
{{- else }}
{{- $_ := set $.base $key $value }}
{{- end }}
{{- end }}
{{- end }}

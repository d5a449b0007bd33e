{{/* Names and labels. Those that take a pool are given a dict of `root` ($) and `pool` (of slipway.pools). */}}

{{- define "slipway.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{- define "slipway.fullname" -}}
{{- $name := include "slipway.name" . }}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}{{ .Release.Name }}
{{- else }}{{ .Release.Name }}-{{ $name }}{{ end }}
{{- end }}

{{- define "slipway.labels" -}}
app.kubernetes.io/name: slipway
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What selects the servers of a pool. Never changes in a release: a Deployment's selector cannot. */}}
{{- define "slipway.selector" -}}
app.kubernetes.io/name: slipway
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: server
slipway/pool: {{ .pool.key }}
{{- end }}

{{- define "slipway.poolLabels" -}}
{{ include "slipway.labels" .root }}
app.kubernetes.io/component: {{ .component | default "server" }}
slipway/pool: {{ .pool.key }}
{{- end }}

{{/* An image's reference: `global.imageRegistry` goes in front of the repository; a digest replaces the tag. */}}
{{- define "slipway.image" -}}
{{- with (.root.Values.global | default dict).imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The pull secrets of the chart and those of a parent chart, whose entries may be plain names. Takes $. */}}
{{- define "slipway.pullSecrets" -}}
{{- $secrets := .Values.imagePullSecrets }}
{{- range (.Values.global | default dict).imagePullSecrets }}
{{- $secrets = append $secrets (ternary . (dict "name" .) (kindIs "map" .)) }}
{{- end }}
{{- with $secrets | uniq }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The Service behind the gRPC Ingress: one of its own where the controller needs annotations on it. */}}
{{- define "slipway.grpcService" -}}
{{ .pool.name }}{{ if .root.Values.ingress.grpc.serviceAnnotations }}-grpc{{ end }}
{{- end }}

{{- define "slipway.controlSecret" -}}
{{ .Values.control.secret | default (printf "%s-control" (include "slipway.fullname" .)) }}
{{- end }}

{{/* The claim of a store: another one where its class or its modes are others, since a claim's cannot change. */}}
{{- define "slipway.claim" -}}
{{- $kind := list .pool.models.storageClass .pool.models.accessModes | toJson | sha256sum | trunc 6 -}}
{{ .pool.models.claim | default (printf "%s-models-%s" .pool.name $kind) }}
{{- end }}

{{/* The Deployment or StatefulSet: another set where the volumes of its replicas are others, as a set's cannot change. */}}
{{- define "slipway.workload" -}}
{{- if eq .pool.workload "StatefulSet" -}}
{{ .pool.name }}-{{ list .pool.models.storageClass .pool.models.size | toJson | sha256sum | trunc 6 }}
{{- else -}}
{{ .pool.name }}
{{- end }}
{{- end }}

{{/* The host name that leads to a pool. */}}
{{- define "slipway.host" -}}
{{ if .root.Values.pools }}{{ .pool.key }}.{{ end }}{{ .host }}
{{- end }}

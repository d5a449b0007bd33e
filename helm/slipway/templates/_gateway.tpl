{{/*
slipway.gateway: the gateway's settings as YAML, those of the values and what follows from others. Takes $.

  name, worker     names of its two workloads and their services; with role all there is no worker
  sqlite           whether its database is a file on its volume
  data             whether it has a volume
  exit             seconds that requests get to end, and that a running video gets to stop after its step
  grace            until proxies know, twice exit, since requests end first and then videos that have not stopped yet, and 15 s
  triton           flags that name the servers: each pool's replicas by address, so that the gateway chooses among them
*/}}
{{- define "slipway.gateway" -}}
{{- $pools := include "slipway.pools" . | fromYaml }}
{{- $gateway := deepCopy .Values.gateway }}
{{- $name := printf "%s-gateway" (include "slipway.fullname" .) }}
{{- $exit := int $gateway.exitTimeout }}
{{- $preStop := 0 }}
{{- $triton := list }}
{{- range $key := $gateway.pools | default (keys $pools | sortAlpha) }}
{{- $pool := get $pools $key }}
{{- $exit = max $exit (int $pool.timing.longestStep) }}
{{- $preStop = max $preStop (int $pool.timing.preStop) }}
{{- $triton = concat $triton (list "--triton" (printf "%s%s-pods:8001" (ternary "grpcs://" "" (not (empty $.Values.tls.secret))) $pool.name)) }}
{{- end }}
{{- if .Values.tls.secret }}{{ $triton = concat $triton (list "--tls" "/secrets/tls") }}{{ end }}
{{- $_ := set $gateway "name" $name }}
{{- $_ := set $gateway "worker" (printf "%s-worker" $name) }}
{{- $_ := set $gateway "sqlite" (empty $gateway.database.secret) }}
{{- $_ := set $gateway "data" (or (empty $gateway.database.secret) (empty $gateway.contents.url)) }}
{{- $kind := list $gateway.volume.storageClass | toJson | sha256sum | trunc 6 }}
{{- $_ := set $gateway "claim" ($gateway.volume.claim | default (printf "%s-%s" $name $kind)) }}
{{- $_ := set $gateway "preStop" $preStop }}
{{- $_ := set $gateway "exit" $exit }}
{{- $_ := set $gateway "grace" (add $preStop (mul 2 $exit) 15) }}
{{- $_ := set $gateway "triton" $triton }}
{{- $gateway | toYaml }}
{{- end }}

{{/* What selects the pods of a component of the gateway. Takes `root` and `component`. */}}
{{- define "slipway.gatewaySelector" -}}
app.kubernetes.io/name: slipway
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "slipway.gatewayLabels" -}}
{{ include "slipway.labels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Variables with what only secrets know. Takes `gateway`. */}}
{{- define "slipway.gatewayEnv" -}}
{{- $env := list }}
{{- with .gateway.database }}
{{- if .secret }}
{{- $env = append $env (dict "name" "SLIPWAY_GATEWAY_DATABASE" "valueFrom" (dict "secretKeyRef" (dict "name" .secret "key" .key))) }}
{{- end }}
{{- end }}
{{- with concat $env .gateway.env }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The flags of a component, after those of the image. */}}
{{- define "slipway.gatewayArguments" -}}
{{- $gateway := .gateway }}
{{- $arguments := list }}
{{- if ne .root.Values.address "0.0.0.0" }}{{ $arguments = list "--host" .root.Values.address }}{{ end }}
{{- if eq $gateway.role "split" }}
{{- $arguments = concat $arguments (list "--role" (ternary "worker" "api" (eq .component "gateway-worker"))) }}
{{- end }}
{{- $arguments = concat $arguments $gateway.triton }}
{{- with $gateway.contents.url }}{{ $arguments = concat $arguments (list "--contents" .) }}{{ end }}
{{- $arguments = concat $arguments (list "--max-body-mb" ($gateway.bodyMiB | int | toString) "--exit-timeout-s" ($gateway.exit | int | toString)) }}
{{- concat $arguments $gateway.arguments | toYaml }}
{{- end }}

{{/* The pod template of the API or of the workers. Takes `root`, `gateway` and `component`. */}}
{{- define "slipway.gatewayPod" -}}
{{- $root := .root }}
{{- $worker := eq .component "gateway-worker" }}
{{- $selector := include "slipway.gatewaySelector" . }}
{{- with .gateway -}}
metadata:
  labels: # without versions, so that a new chart alone starts no pod anew
    {{- $selector | nindent 4 }}
    {{- with .podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "slipway.podBase" $root | nindent 2 }}
  {{- with .nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .priorityClass }}
  priorityClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .grace }}
  topologySpreadConstraints:
    {{- range $topology, $otherwise := dict "kubernetes.io/hostname" .spread.host "topology.kubernetes.io/zone" .spread.zone }}
    - maxSkew: 1
      topologyKey: {{ $topology }}
      whenUnsatisfiable: {{ $otherwise }}
      labelSelector: { matchLabels: {{ $selector | fromYaml | toJson }} }
      {{- with $.gateway.spread.matchLabelKeys }}
      matchLabelKeys: {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
  containers:
    - name: gateway
      image: {{ include "slipway.image" (dict "root" $root "image" .image) }}
      imagePullPolicy: {{ .image.pullPolicy }}
      args: {{- include "slipway.gatewayArguments" $ | nindent 8 }}
      ports: [{ name: http, containerPort: 8080 }]
      {{- include "slipway.gatewayEnv" $ | nindent 6 }}
      {{- with .contents.secret }}
      envFrom:
        - secretRef: { name: {{ . }} }
      {{- end }}
      # A database of an earlier version is brought up to date at the start, where it is SQLite.
      startupProbe:
        httpGet: { path: /healthz, port: http }
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 60
      readinessProbe:
        httpGet: { path: /readyz, port: http }
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      livenessProbe:
        httpGet: { path: /healthz, port: http }
        periodSeconds: 20
        timeoutSeconds: 10
        failureThreshold: 4
      {{- if not $worker }}
      lifecycle:
        preStop:
          # Until all proxies know that this pod goes; it still answers then.
          exec: { command: [/bin/sh, -c, sleep {{ .preStop }}] }
      {{- end }}
      resources: {{- ternary .workers.resources .resources $worker | toYaml | nindent 8 }}
      securityContext: {{- toYaml $root.Values.securityContext | nindent 8 }}
      volumeMounts:
        - { name: tmp, mountPath: /tmp }
        {{- if .data }}
        - { name: data, mountPath: /data }
        {{- end }}
        {{- if $root.Values.tls.secret }}
        - { name: tls, mountPath: /secrets/tls, readOnly: true }
        {{- end }}
        {{- with .volumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if .data }}
    - name: data
      persistentVolumeClaim: { claimName: {{ .claim }} }
    {{- end }}
    {{- with $root.Values.tls.secret }}
    - name: tls
      secret: { secretName: {{ . }} }
    {{- end }}
    {{- with .volumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}
{{- end }}

{{/* The Job that brings the database up to date. It runs before the release's service account is there. */}}
{{- define "slipway.gatewayMigration" -}}
{{- $root := .root }}
{{- with .gateway -}}
# The database may not answer yet: a pod that fails is tried again, 10, 20, 40 s later.
backoffLimit: 5
activeDeadlineSeconds: 900
template:
  metadata:
    labels:
      {{- include "slipway.gatewaySelector" (dict "root" $root "component" "gateway-migrate") | nindent 6 }}
      {{- with .podLabels }}{{ toYaml . | nindent 6 }}{{ end }}
    {{- with .podAnnotations }}
    annotations: {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    restartPolicy: Never
    {{- include "slipway.podBase" $root | replace (printf "serviceAccountName: %s" (include "slipway.fullname" $root)) "serviceAccountName: default" | nindent 4 }}
    {{- with .nodeSelector }}
    nodeSelector: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .tolerations }}
    tolerations: {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - name: migrate
        image: {{ include "slipway.image" (dict "root" $root "image" .image) }}
        imagePullPolicy: {{ .image.pullPolicy }}
        command: [slipway, gateway, migrate]
        {{- include "slipway.gatewayEnv" $ | nindent 8 }}
        resources: {{- .resources | toYaml | nindent 10 }}
        securityContext: {{- toYaml $root.Values.securityContext | nindent 10 }}
        volumeMounts:
          - { name: tmp, mountPath: /tmp }
          {{- with .volumeMounts }}{{ toYaml . | nindent 10 }}{{ end }}
    volumes:
      - name: tmp
        emptyDir: {}
      {{- with .volumes }}{{ toYaml . | nindent 6 }}{{ end }}
{{- end }}
{{- end }}

{{/* Jobs that wait or run, as the gateway tells; of the models that match. Every pod tells the same, so the largest counts. */}}
{{- define "slipway.gatewayJobs" -}}
{{- $models := "" }}
{{- with .models }}{{ $models = printf ",model=~%q" . }}{{ end }}
{{- printf "sum(max by (__name__, model) ({__name__=~\"slipway_gateway_jobs_(waiting|running)\",namespace=%q,service=\"%s-gateway\"%s}))" .root.Release.Namespace (include "slipway.fullname" .root) $models }}
{{- end }}

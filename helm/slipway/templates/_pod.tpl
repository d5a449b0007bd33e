{{/* The pods of a pool, its servers and what prepares for them; all take `root` and `pool`. */}}

{{/* What every pod of the release has: its service account, and the security context of the values. Takes $. */}}
{{- define "slipway.podBase" -}}
serviceAccountName: {{ include "slipway.fullname" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- include "slipway.pullSecrets" . }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- end }}

{{/* The environment of the container that prepares: its own folder, the pool's, then its own variables. */}}
{{- define "slipway.prepareEnv" -}}
{{- $env := list (dict "name" "HF_HOME" "value" "/store/.huggingface") }}
{{- with .pool.prepare.hubToken }}
{{- if .secret }}
{{- $env = append $env (dict "name" "HF_TOKEN" "valueFrom" (dict "secretKeyRef" (dict "name" .secret "key" .key))) }}
{{- end }}
{{- end }}
{{- concat $env .pool.env .pool.prepare.env | toYaml }}
{{- end }}

{{/* Resources with the pool's GPUs, which are limits. */}}
{{- define "slipway.gpuResources" -}}
{{- $resources := deepCopy .resources }}
{{- if gt (int .gpu.count) 0 }}
{{- $_ := set $resources "limits" (set ($resources.limits | default dict) .gpu.resource (int .gpu.count)) }}
{{- end }}
{{- $resources | toYaml }}
{{- end }}

{{/* Where pods may run: the pool's own wishes, and nodes with its GPU. */}}
{{- define "slipway.placement" -}}
{{- with .pool }}
{{- $selector := deepCopy .nodeSelector }}
{{- with .gpu.computeCapability }}
{{- $_ := set $selector "nvidia.com/gpu.compute.major" (splitList "." . | first) }}
{{- $_ := set $selector "nvidia.com/gpu.compute.minor" (splitList "." . | last) }}
{{- end }}
{{- with $selector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := .tolerations }}
{{- if gt (int .gpu.count) 0 }}
{{- $tolerations = append $tolerations (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- with $tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .gpu.runtimeClass }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClass }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}
{{ include "slipway.podBase" .root }}
{{- end }}

{{/*
The container that exports into the folder of this set of exports. Pods that share a store prepare one after another: the first
does the work, the others find it done. A mark inside the folder says that it is whole, and when it was last wanted; all but the
newest folders of former sets are removed then.
*/}}
{{- define "slipway.prepare" -}}
name: prepare
image: {{ include "slipway.image" (dict "root" .root "image" .pool.prepare.image) }}
imagePullPolicy: {{ .pool.image.pullPolicy }}
command: [/bin/sh, -euc]
args:
  - |
    exec 9>/store/.prepare.lock
    flock --nonblock 9 || { echo "another pod prepares this store; waiting for it"; flock 9; }
    models={{ .pool.computed.repository }}
    if [ -f "$models/.prepared" ]; then
      echo "prepared before: $models"
    else
    {{- range .pool.prepare.exports }}
      timeout {{ $.pool.prepare.seconds }} slipway export {{ . }} --repository "$models"
    {{- end }}
    fi
    touch "$models/.prepared"
    ls -dt /store/{{ .pool.computed.path }}-set-*/.prepared | tail -n +{{ add 2 .pool.prepare.keep }} | while read -r old; do
      echo "removing former models: ${old%/.prepared}"
      rm -rf "${old%/.prepared}"
    done
env: {{- include "slipway.prepareEnv" . | nindent 2 }}
{{- with .pool.prepare.secret }}
envFrom:
  - secretRef: { name: {{ . }} }
{{- end }}
{{- if .pool.prepare.gpu }}
resources: {{- include "slipway.gpuResources" (dict "resources" .pool.prepare.resources "gpu" .pool.gpu) | nindent 2 }}
{{- else }}
resources: {{- toYaml .pool.prepare.resources | nindent 2 }}
{{- end }}
securityContext: {{- toYaml .root.Values.securityContext | nindent 2 }}
volumeMounts:
  - { name: store, mountPath: /store }
  - { name: tmp, mountPath: /tmp }
  {{- with .pool.volumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* The container that waits until the Job has prepared, and says what it waits for. */}}
{{- define "slipway.wait" -}}
{{- $mark := printf "%s/.prepared" .pool.computed.repository }}
{{- $selector := printf "app.kubernetes.io/instance=%s,app.kubernetes.io/component=prepare,slipway/pool=%s" .root.Release.Name .pool.key }}
name: wait
image: {{ include "slipway.image" (dict "root" .root "image" .pool.image) }}
imagePullPolicy: {{ .pool.image.pullPolicy }}
command: [/bin/sh, -c]
args:
  - |
    until [ -f {{ $mark }} ]; do
      echo "waiting for {{ $mark }}, which the Job that prepares the models writes; kubectl get jobs,pods --selector {{ $selector }}"
      for i in 1 2 3 4 5; do [ -f {{ $mark }} ] || sleep 2; done
    done
resources: {{- toYaml .pool.prepare.waitResources | nindent 2 }}
securityContext: {{- toYaml .root.Values.securityContext | nindent 2 }}
volumeMounts:
  - { name: store, mountPath: /store, readOnly: true }
{{- end }}

{{/* A shared store as a volume; a local one is a claim of the StatefulSet or dies with the pod. */}}
{{- define "slipway.store" -}}
{{- with .pool.models }}
{{- if eq .store "claim" }}
- name: store
  persistentVolumeClaim: { claimName: {{ include "slipway.claim" $ }} }
{{- else if eq .store "hostPath" }}
- name: store
  hostPath: { path: {{ .hostPath }}, type: Directory }
{{- else if and (eq .store "local") (eq $.pool.workload "Deployment") }}
- name: store
  emptyDir: { sizeLimit: {{ .size }} }
{{- end }}
{{- end }}
{{- end }}

{{- define "slipway.server" -}}
{{- $values := .root.Values }}
{{- with .pool }}
name: triton
image: {{ include "slipway.image" (dict "root" $.root "image" .image) }}
imagePullPolicy: {{ .image.pullPolicy }}
args: {{- include "slipway.arguments" $ | trim | nindent 2 }}
ports:
  - { name: http, containerPort: 8000 }
  - { name: grpc, containerPort: 8001 }
  - { name: metrics, containerPort: 8002 }
  - { name: probes, containerPort: 8004 }
{{- with .env }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if and (eq .models.store "url") .models.secret }}
envFrom:
  - secretRef: { name: {{ .models.secret }} }
{{- end }}
startupProbe:
  httpGet: { path: /v2/health/ready, port: http }
  periodSeconds: {{ .computed.startupPeriod }}
  timeoutSeconds: 5
  failureThreshold: {{ .computed.startupFailures }}
# Triton says ready of a model whose process was killed, so the endpoint of `slipway serve` looks at the processes too.
readinessProbe:
  httpGet: { path: /ready, port: probes }
  periodSeconds: 10
  timeoutSeconds: 20
  failureThreshold: 2
livenessProbe:
  httpGet: { path: /live, port: probes }
  periodSeconds: {{ .computed.livenessPeriod }}
  timeoutSeconds: 20
  failureThreshold: {{ .computed.livenessFailures }}
lifecycle:
  preStop:
    # Told to end, Triton stops all models at once, inner ones of a pipeline under way too: so its work ends before.
    exec: { command: [/bin/sh, -c, sleep {{ .computed.moving }}; slipway drain --{{ .computed.drainBy }} --timeout-s {{ .computed.drain }}] }
resources: {{- include "slipway.gpuResources" . | nindent 2 }}
securityContext: {{- toYaml $values.securityContext | nindent 2 }}
volumeMounts:
  - { name: tmp, mountPath: /tmp }
  - { name: shm, mountPath: /dev/shm }
  {{- with .volumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
  {{- if has .models.store (list "local" "claim" "hostPath") }}
  - { name: store, mountPath: /store, readOnly: true }
  {{- end }}
  - { name: control, mountPath: /secrets/control, readOnly: true }
  {{- if .limits }}
  - { name: limits, mountPath: /config, readOnly: true }
  {{- end }}
  {{- if $values.tls.secret }}
  - { name: tls, mountPath: /secrets/tls, readOnly: true }
  {{- end }}
  {{- if and (eq .models.store "url") .models.secret }}
  - { name: credentials, mountPath: /secrets/store, readOnly: true }
  {{- end }}
{{- end }}
{{- end }}

{{/* The pod template of a Deployment or a StatefulSet. */}}
{{- define "slipway.pod" -}}
{{- $values := .root.Values }}
{{- with .pool }}
metadata:
  labels: # without versions, so that a new chart alone starts no pod anew
    {{- include "slipway.selector" $ | nindent 4 }}
    {{- with .podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- $annotations := deepCopy .podAnnotations }}
  {{- if .limits }}
  {{- /* Models read their limits when they are loaded: others make other pods. */}}
  {{- $_ := set $annotations "slipway/limits" (.limits | toJson | sha256sum | trunc 10) }}
  {{- end }}
  {{- with $annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- include "slipway.placement" $ | trim | nindent 2 }}
  terminationGracePeriodSeconds: {{ .computed.grace }}
  topologySpreadConstraints:
    {{- range $topology, $otherwise := dict "kubernetes.io/hostname" .spread.host "topology.kubernetes.io/zone" .spread.zone }}
    - maxSkew: 1
      topologyKey: {{ $topology }}
      whenUnsatisfiable: {{ $otherwise }}
      labelSelector: { matchLabels: {{ include "slipway.selector" $ | fromYaml | toJson }} }
      {{- with $.pool.spread.matchLabelKeys }}
      matchLabelKeys: {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
  {{- if or .prepare.exports .initContainers }}
  initContainers:
    {{- with .initContainers }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- if .prepare.exports }}
    - {{ include (ternary "slipway.prepare" "slipway.wait" (eq .prepare.by "pod")) $ | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  containers:
    - {{ include "slipway.server" $ | trim | nindent 6 | trim }}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: shm
      emptyDir: { medium: Memory, sizeLimit: {{ .computed.sharedMemoryMiB }}Mi }
    {{- with .volumes }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with include "slipway.store" $ | trim }}{{ . | nindent 4 }}{{ end }}
    - name: control
      secret: { secretName: {{ include "slipway.controlSecret" $.root }} }
    {{- if .limits }}
    - name: limits
      configMap: { name: {{ .name }}-limits }
    {{- end }}
    {{- with $values.tls.secret }}
    - name: tls
      secret: { secretName: {{ . }} }
    {{- end }}
    {{- if and (eq .models.store "url") .models.secret }}
    - name: credentials
      secret: { secretName: {{ .models.secret }} }
    {{- end }}
{{- end }}
{{- end }}

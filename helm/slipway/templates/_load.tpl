{{/* slipway.load: the load test as YAML: its names, its pool, its master's and its workers' pods. Takes $. */}}
{{- define "slipway.load" -}}
{{- $load := .Values.load }}
{{- $pools := include "slipway.pools" . | fromYaml }}
{{- $key := $load.pool | default (keys $pools | sortAlpha | first) }}
{{- $pool := get $pools $key }}
{{- if not $pool }}
{{- fail (printf "slipway: load.pool must be one of %s, got %s" (keys $pools | sortAlpha | join ", ") $key) }}
{{- end }}
{{- $name := printf "%s-load" $pool.name }}
{{- $tls := .Values.tls.secret }}
{{- $server := list "--url" (printf "%s%s:8001" (ternary "grpcs://" "grpc://" (not (empty $tls))) $pool.name) }}
{{- if $tls }}{{ $server = concat $server (list "--tls" "/secrets/tls") }}{{ end }}
{{- $server = concat $server (list "--wait-s" (toString $pool.computed.progress) "--workers" (toString $load.workers)) }}
name: {{ $name }}
pool: {{ $pool.name }}
leading: {{ concat $server $load.arguments | toJson }}
following: {{ list "--worker-of" $name | toJson }}
{{- end }}

{{/* A pod of the load test. Takes `root`, `component` and `arguments`. */}}
{{- define "slipway.loadPod" -}}
{{- $root := .root }}
{{- $load := $root.Values.load }}
metadata:
  labels:
    app.kubernetes.io/name: slipway
    app.kubernetes.io/instance: {{ $root.Release.Name }}
    app.kubernetes.io/component: {{ .component }}
    {{- with $load.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with $load.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with .restart }}
  restartPolicy: {{ . }}
  {{- end }}
  {{- include "slipway.podBase" $root | nindent 2 }}
  containers:
    - name: load
      image: {{ include "slipway.image" (dict "root" $root "image" $load.image) }}
      args: {{- .arguments | toYaml | nindent 8 }}
      {{- if eq .component "load" }}
      ports: [{ name: load, containerPort: 5557 }]
      {{- end }}
      resources: {{- $load.resources | toYaml | nindent 8 }}
      {{- with $load.env }}
      env: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {{- toYaml $root.Values.securityContext | nindent 8 }}
      volumeMounts:
        - { name: tmp, mountPath: /tmp }
        {{- if $root.Values.tls.secret }}
        - { name: tls, mountPath: /secrets/tls, readOnly: true }
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- with $root.Values.tls.secret }}
    - name: tls
      secret: { secretName: {{ . }} }
    {{- end }}
{{- end }}

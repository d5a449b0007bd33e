{{/*
slipway.arguments: a YAML list of the server container's arguments, given `root` and `pool`: flags of `slipway serve`, with
tritonserver's own after `--`.
*/}}
{{- define "slipway.arguments" -}}
{{- include "slipway.serveArguments" . }}
{{- with include "slipway.tritonArguments" . | trim }}
- --
{{ . }}
{{- end }}
{{- end }}

{{- define "slipway.serveArguments" }}
- --repository
- {{ .pool.computed.repository }}
- --verbose
- --host
- {{ .pool.address | quote }}
- --probe-port
- "8004"
- --exit-timeout-s
- {{ .pool.computed.exitTimeout | quote }}
{{- /* finish is the default of `slipway serve`: pods that have it stay as they are when this chart is upgraded. */}}
{{- if ne .pool.onStop "finish" }}
- --on-stop
- {{ .pool.onStop }}
{{- end }}
- --ready-timeout-s
- {{ .pool.timing.load | int | quote }}
- --model-control
- {{ .root.Values.control.mode }}
- --control-token-file
- /secrets/control/token
{{- if .pool.limits }}
- --limits
- /config/limits.yaml
{{- end }}
{{- if eq .root.Values.control.mode "none" }}
- --response-cache-mib
- {{ .pool.responseCacheMiB | int | quote }}
{{- end }}
{{- with .root.Values.tracing }}
{{- if .url }}
- --trace-otlp
- {{ .url }}
- --trace-every
- {{ .every | int | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Arguments of tritonserver itself. */}}
{{- define "slipway.tritonArguments" }}
{{- if .root.Values.tls.secret }}
- --grpc-use-ssl=true
- --grpc-server-cert=/secrets/tls/tls.crt
- --grpc-server-key=/secrets/tls/tls.key
{{- if .root.Values.tls.mutual }}
- --grpc-use-ssl-mutual=true
- --grpc-root-cert=/secrets/tls/ca.crt
{{- end }}
{{- end }}
{{- if gt (int .pool.computed.connectionAge) 0 }}
- --grpc-max-connection-age={{ .pool.computed.connectionAge }}000
{{- end }}
{{- range .pool.arguments }}
- {{ . | quote }}
{{- end }}
{{- end }}

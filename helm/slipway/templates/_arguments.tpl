{{/*
slipway.arguments: a YAML list of the server container's arguments, given `root` and `pool`. The embedded image takes
flags of `slipway serve`, with tritonserver's own after `--`; NGC's takes tritonserver's.
*/}}
{{- define "slipway.arguments" -}}
{{- if eq .pool.image.kind "embedded" }}
{{- include "slipway.serveArguments" . }}
{{- with include "slipway.tritonArguments" . | trim }}
- --
{{ . }}
{{- end }}
{{- else }}
{{- include "slipway.ngcArguments" . }}
{{- include "slipway.tritonArguments" . }}
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

{{- define "slipway.ngcArguments" }}
{{- $closed := "model-repository,shared-memory,trace,logging:slipway-control=$(SLIPWAY_CONTROL_TOKEN)" }}
- --model-repository={{ .pool.computed.repository }}
{{- if eq .pool.address "::" }}
- "--http-address=ipv6:::"
- "--grpc-address=[::]"
- "--metrics-address=ipv6:::"
{{- end }}
- --exit-timeout-secs={{ .pool.computed.exitTimeout }}
- --model-control-mode={{ .root.Values.control.mode }}
{{- if and (eq .root.Values.control.mode "none") (gt (int .pool.responseCacheMiB) 0) }}
- --cache-config=local,size={{ mul (int .pool.responseCacheMiB) 1048576 }}
{{- end }}
{{- if eq .root.Values.control.mode "explicit" }}
- --load-model=*
{{- end }}
- --http-restricted-api={{ $closed }}
- --grpc-restricted-protocol={{ $closed }}
{{- with .root.Values.tracing }}
{{- if .url }}
- --trace-config=mode=opentelemetry
- --trace-config=level=TIMESTAMPS
- --trace-config=count=-1
- --trace-config=rate={{ int .every }}
- --trace-config=opentelemetry,url={{ .url }}
- --trace-config=opentelemetry,resource=service.name=slipway
{{- end }}
{{- end }}
{{- end }}

{{/* What both images take in tritonserver's own words. */}}
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

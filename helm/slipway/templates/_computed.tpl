{{/*
slipway.computed: what follows from a pool's settings. All seconds but sharedMemoryMiB.

  ending       what requests under way get to end: the longest job; with onStop checkpoint the longest step, since videos stop
               after it, so that the grace period fits into the notice that a spot node gets
  exitTimeout  what Triton gives requests under way: ending
  moving       until proxies know and the last connection has moved on (gRPC ends it at its age, give or take a tenth):
               on a connection that stays, Triton answers no further request once it is told to end. With onStop checkpoint
               only until proxies know: the callers of stopped videos open new connections by themselves
  drain        then, until no request is under way, at most ending; both before SIGTERM
  drainBy      the flag of `slipway drain`
  grace        moving + drain + exitTimeout + 30, since Kubernetes kills when it is over: `slipway serve` gives Triton 5 s
               more than exitTimeout, and unloading the models of an idle server took up to 10 s
  startup      failures that the startup probe forgives; with the period at least the load time, rounded up
  start        of one replica: preparing, where its own pod does it, loading, and a minute for pulling
  liveness     failures of the liveness probe before a restart: a model whose process died may take the load time to be
               started again in place, and a restart would load every model
  progress     before a rollout counts as stuck: that, and what a Job prepares first
  proxy        a proxy's patience: the longest job and what waits before it begins
*/}}
{{- define "slipway.computed" -}}
{{- $load := int .timing.load }}
{{- $job := int .timing.longestJob }}
{{- $period := 5 }}
{{- $failures := add1 (div (add $load (sub $period 1)) $period) }}
{{- $age := ternary 0 (int .timing.connectionAge) .sticky }}
{{- $checkpoint := eq .onStop "checkpoint" }}
{{- $ending := ternary (int .timing.longestStep) $job $checkpoint }}
{{- $moving := add (int .timing.preStop) (ternary 0 (div (add (mul $age 11) 9) 10) $checkpoint) }}
connectionAge: {{ $age }}
moving: {{ $moving }}
drain: {{ $ending }}
drainBy: {{ ternary "checkpoint" "refuse" $checkpoint }}
exitTimeout: {{ $ending }}
grace: {{ add $moving $ending $ending 30 }}
startupPeriod: {{ $period }}
startupFailures: {{ $failures }}
livenessPeriod: 20
livenessFailures: {{ add 4 (div (add $load 19) 20) }}
{{- $preparing := ternary (int .prepare.seconds) 0 (not (empty .prepare.exports)) }}
start: {{ add (ternary $preparing 0 (eq .prepare.by "pod")) (mul $failures $period) 60 }}
progress: {{ add $preparing (mul $failures $period) 60 }}
proxy: {{ add $job 60 }}
stabilization: {{ max (int .autoscaling.stabilization) $job }}
{{- /* 32 MiB for the server itself, as serving/slipway_serving/triton/start/checks.py asks for. */}}
sharedMemoryMiB: {{ add 32 (mul (int .sharedMemory.instances) (int .sharedMemory.perInstanceMiB)) }}
{{- $path := .models.path }}
{{- if .gpu.computeCapability }}
{{- $path = printf "%s-sm%s-trt%s" $path (.gpu.computeCapability | replace "." "") .gpu.tensorrt }}
{{- end }}
path: {{ $path }}
{{- if eq .models.store "image" }}
repository: /models
{{- else if eq .models.store "url" }}
repository: {{ printf "%s/%s" (trimSuffix "/" .models.url) $path }}
{{- else if .prepare.exports }}
{{- /* Each set of exports has a folder of its own: pods of another revision go on serving theirs. */}}
repository: /store/{{ $path }}-set-{{ list .prepare.exports .prepare.image | toJson | sha256sum | trunc 10 }}
{{- else }}
repository: /store/{{ $path }}
{{- end }}
{{- $arguments := .test.arguments }}
{{- if kindIs "invalid" $arguments }}
{{- $arguments = list "ready" }}
{{- range .prepare.exports }}
{{- if hasPrefix "wan_t2v --checkpoint demo" . }}
{{- $arguments = list "generate" "wan_t2v" "a red ball moves up on grass" "--frames" "5" "--size" "32x32" "--steps" "2" "--output" "/tmp/ball.mp4" }}
{{- end }}
{{- end }}
{{- end }}
testArguments: {{ $arguments | toJson }}
{{- end }}

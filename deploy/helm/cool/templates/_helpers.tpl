{{- define "cool.name" -}}
{{- if contains "cool" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-cool{{ end -}}
{{- end }}

{{- define "cool.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* The labels by which a part's pods are selected: (list $ "controller") */}}
{{- define "cool.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: cool
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "cool.labels" -}}
{{- $root := index . 0 -}}
{{ include "cool.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{- define "cool.controllers" -}}
{{ ternary 2 1 (gt (len .Values.controller.etcd.endpoints) 0) }}
{{- end }}

{{/* The addresses at which agents and tools find the controllers. Each pod of a stateful set has a name. */}}
{{- define "cool.addresses" -}}
{{- $name := printf "%s-controller" (include "cool.name" .) -}}
{{- $addresses := list -}}
{{- range until (int (include "cool.controllers" .)) -}}
{{- $addresses = append $addresses (printf "https://%s-%d.%s.%s.svc:7400" $name . $name $.Release.Namespace) -}}
{{- end -}}
{{ join "," $addresses }}
{{- end }}

{{/* Shared by containers: the user cool without privileges. */}}
{{- define "cool.user" -}}
runAsUser: {{ .Values.userId }}
runAsGroup: {{ .Values.userId }}
runAsNonRoot: true
{{- end }}

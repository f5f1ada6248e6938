{{/* The name of all objects of the release. */}}
{{- define "trellis.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that all objects of the release have; they never change. */}}
{{- define "trellis.selector" -}}
app.kubernetes.io/name: trellis
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels that select the pods of the broker. */}}
{{- define "trellis.nodeSelector" -}}
{{ include "trellis.selector" . }}
app.kubernetes.io/component: node
{{- end -}}

{{/* Labels of all objects. */}}
{{- define "trellis.labels" -}}
{{ include "trellis.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* The names of the enabled listeners of clients. */}}
{{- define "trellis.listeners" -}}
{{- range $name, $listener := omit .Values.listeners "metrics" -}}
{{- if $listener.enabled }}{{ $name }} {{ end -}}
{{- end -}}
{{- end -}}

{{/* The name of the Secret with the password of the first user. */}}
{{- define "trellis.userSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-user" (include "trellis.name" .)) -}}
{{- end -}}

{{/* The name of the Secret with the definitions; "" if there are none. */}}
{{- define "trellis.definitionsSecret" -}}
{{- if .Values.definitions.existingSecret -}}
{{- .Values.definitions.existingSecret -}}
{{- else if .Values.definitions.content -}}
{{- include "trellis.name" . }}-definitions
{{- end -}}
{{- end -}}

{{/* The name of the Secret with the options of Kafka's client; "" if there is none. */}}
{{- define "trellis.kafkaSecret" -}}
{{- if .Values.cluster.enabled -}}
{{- if .Values.cluster.existingSecret -}}
{{- .Values.cluster.existingSecret -}}
{{- else if .Values.cluster.options -}}
{{- include "trellis.name" . }}-kafka
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The host of the clients' Service. */}}
{{- define "trellis.host" -}}
{{- printf "%s.%s.svc.%s" (include "trellis.name" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{/* The settings files, in the order in which a later file overrides an earlier one. */}}
{{- define "trellis.config" -}}
/etc/trellis/settings/broker.toml
{{- if include "trellis.kafkaSecret" . }}:/etc/trellis/kafka/kafka.toml{{ end -}}
{{- if .Values.settings }}:/etc/trellis/settings/settings.toml{{ end -}}
{{- if .Values.settingsSecret }}:/etc/trellis/secret/settings.toml{{ end -}}
{{- end -}}

{{/* Refuse combinations of values that cannot work; values.schema.json checks single values. */}}
{{- define "trellis.check" -}}
{{- if not (or .Values.auth.password .Values.auth.existingSecret) -}}
{{- fail "auth.password is empty: set it, or set auth.existingSecret to the name of a Secret with the key 'password'" -}}
{{- end -}}
{{- if and .Values.auth.password .Values.auth.existingSecret -}}
{{- fail "auth.password and auth.existingSecret are both set: remove one of them" -}}
{{- end -}}
{{- if and .Values.definitions.content .Values.definitions.existingSecret -}}
{{- fail "definitions.content and definitions.existingSecret are both set: remove one of them" -}}
{{- end -}}
{{- range $name := list "amqps" "mqtts" "wss" -}}
{{- if and (get $.Values.listeners $name).enabled (not $.Values.tls.existingSecret) -}}
{{- fail (printf "listeners.%s is enabled, and tls.existingSecret is empty: set it to the name of a Secret with tls.crt and tls.key" $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.listeners.http.tls (not .Values.tls.existingSecret) -}}
{{- fail "listeners.http.tls is true, and tls.existingSecret is empty: set it to the name of a Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- if and .Values.cluster.enabled (not .Values.cluster.servers) -}}
{{- fail "cluster.enabled is true, and cluster.servers is empty: set it to the HOST:PORT of the Kafka nodes" -}}
{{- end -}}
{{- if and .Values.cluster.options .Values.cluster.existingSecret -}}
{{- fail "cluster.options and cluster.existingSecret are both set: move the options to the key kafka.toml of the Secret" -}}
{{- end -}}
{{- end -}}

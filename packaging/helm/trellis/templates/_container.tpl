{{/* The parts that the pods of the broker and of the Job of a cluster share. */}}
{{- define "trellis.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
automountServiceAccountToken: false
# No environment variables of other Services.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{/* The parts that the containers share; the list volumeMounts comes last, so that a container can add to it. */}}
{{- define "trellis.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
env:
  # `kubectl exec ... trellis ...` reads these files, too.
  - name: TRELLIS_CONFIG
    value: {{ include "trellis.config" . | quote }}
  - name: TRELLIS_NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: TRELLIS_USER
    value: {{ .Values.auth.user | quote }}
  - name: TRELLIS_PASSWORD_FILE
    value: /etc/trellis/user/password
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - { name: tmp, mountPath: /tmp }
  - { name: settings, mountPath: /etc/trellis/settings, readOnly: true }
  - { name: user, mountPath: /etc/trellis/user, readOnly: true }
  {{- if .Values.settingsSecret }}
  - { name: secret, mountPath: /etc/trellis/secret, readOnly: true }
  {{- end }}
  {{- if .Values.tls.existingSecret }}
  - { name: tls, mountPath: /etc/trellis/tls, readOnly: true }
  {{- end }}
  {{- if include "trellis.definitionsSecret" . }}
  - { name: definitions, mountPath: /etc/trellis/definitions, readOnly: true }
  {{- end }}
  {{- if include "trellis.kafkaSecret" . }}
  - { name: kafka, mountPath: /etc/trellis/kafka, readOnly: true }
  {{- end }}
{{- end -}}

{{/* The volumes of these mounts. */}}
{{- define "trellis.volumes" -}}
- name: settings
  configMap:
    name: {{ include "trellis.name" . }}
- name: user
  secret:
    secretName: {{ include "trellis.userSecret" . }}
    items:
      - { key: password, path: password }
{{- with .Values.settingsSecret }}
- name: secret
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ . }}
{{- end }}
{{- with include "trellis.definitionsSecret" . }}
- name: definitions
  secret:
    secretName: {{ . }}
{{- end }}
{{- with include "trellis.kafkaSecret" . }}
- name: kafka
  secret:
    secretName: {{ . }}
{{- end }}
- name: tmp
  emptyDir: {}
{{- end -}}

{{/* Fails for values that the schema cannot refuse: names that are too long or given twice, and clusters left out. */}}
{{- define "pipeline.check" -}}
{{- $release := .Release.Name -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]{0,41}$" $release) -}}
{{- fail (printf "release %s: choose a name of at most 42 small letters, digits and -, which begins with a letter; names of Services begin with it" $release) -}}
{{- end -}}
{{- range $key, $settings := dict "broker" .Values.broker.settings "registry" .Values.registry.settings "mirror" .Values.mirror.settings "audit" .Values.audit.settings -}}
{{- include "pipeline.noSecrets" (list (print $key ".settings") $settings) -}}
{{- end -}}
{{- range $key, $each := dict "mirror.sources" .Values.mirror.sources "audit.live" .Values.audit.live "loads" .Values.loads -}}
{{- range $each -}}{{- include "pipeline.noSecrets" (list (print $key "." .name ".settings") .settings) -}}{{- end -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.loads -}}
{{- if has .name $names -}}{{- fail (printf "loads: the name %s is given twice" .name) -}}{{- end -}}
{{- if and .schedule (gt (len (printf "%s-load-%s" $release .name)) 52) -}}
{{- fail (printf "loads: release %s and load %s: their names have more than 46 characters together, too many for a CronJob; choose a shorter one" $release .name) -}}
{{- end -}}
{{- $settings := .settings | default dict -}}
{{- if not (or (gt (int $.Values.registry.replicas) 0) (hasKey $settings "schema.registry.url") (hasKey $settings "value.format")) -}}
{{- fail (printf "loads: %s has no registry, as registry.replicas is 0: set schema.registry.url or value.format in its settings" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $key, $clusters := dict "mirror.sources" .Values.mirror.sources "audit.live" .Values.audit.live -}}
{{- $names := list $.Values.datacenter -}}
{{- range $clusters -}}
{{- if has .name $names -}}{{- fail (printf "%s: the name %s is given twice, or is that of this datacenter" $key .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- $internal := true -}}
{{- range .Values.mirror.topics -}}{{- if not (regexMatch "^_[A-Za-z0-9_-]*$" .) -}}{{- $internal = false -}}{{- end -}}{{- end -}}
{{- if and .Values.audit.enabled (gt (int .Values.mirror.replicas) 0) (not $internal) -}}
{{- $live := list -}}
{{- range .Values.audit.live -}}{{- $live = append $live .name -}}{{- end -}}
{{- range .Values.mirror.sources -}}
{{- if not (has .name $live) -}}{{- fail (printf "audit.live: %s is a source of the mirror, and the audit would not look at it; add it" .name) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Fails for a secret in settings, as a ConfigMap is no place for it: include "pipeline.noSecrets" (list "broker.settings" .settings). */}}
{{- define "pipeline.noSecrets" -}}
{{- $place := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- $text := toString $value -}}
{{- $holds := and (regexMatch "(password|user[.]info|secret-access-key)$" $key) (not (contains "${" $text)) -}}
{{- if or $holds (and (hasSuffix "jaas.config" $key) (regexMatch "(password|secret|user_[^=]*) *= *\"?[^$\" ]" (lower $text))) -}}
{{- fail (printf "%s: %s holds a secret; put it into the Secret, and write ${file:PATH:KEY} for it" $place $key) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Labels of everything of a part: include "pipeline.labels" (list . "broker"). */}}
{{- define "pipeline.labels" -}}
{{- $root := index . 0 -}}
{{ include "pipeline.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
pipeline/datacenter: {{ $root.Values.datacenter | quote }}
{{- end }}

{{- define "pipeline.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of pods: without versions, so that a new version of the chart alone restarts nothing. */}}
{{- define "pipeline.podLabels" -}}
{{ include "pipeline.selector" . }}
pipeline/datacenter: {{ (index . 0).Values.datacenter | quote }}
{{- end }}

{{/* The image of a part: include "pipeline.image" (list . "broker"). ZooKeeper and loads need Java. */}}
{{- define "pipeline.image" -}}
{{- $image := (index . 0).Values.image -}}
{{- $services := ternary $image.servicesRepository "" (has (index . 1) (list "broker" "mirror" "registry" "audit")) -}}
image: "{{ $services | default $image.repository }}:{{ $image.tag | default (index . 0).Chart.AppVersion }}"
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{/* What the container of every pod may do. */}}
{{- define "pipeline.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* Parts of every pod, before its containers: include "pipeline.pod" (list . "broker"). */}}
{{- define "pipeline.pod" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $asks := and (eq $part "broker") (eq $root.Values.broker.rackFrom "node") -}}
serviceAccountName: {{ print $root.Release.Name (ternary "-broker" "" (eq $part "broker")) | quote }}
automountServiceAccountToken: {{ $asks }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $root.Values.user }}
  runAsGroup: {{ $root.Values.user }}
  fsGroup: {{ $root.Values.user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "pipeline.spread" -}}
{{- $root := index . 0 -}}
topologySpreadConstraints:
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "pipeline.selector" . | nindent 8 }}
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: {{ ternary $root.Values.broker.spreadOverNodes "ScheduleAnyway" (has (index . 1) (list "broker" "zookeeper")) }}
    labelSelector:
      matchLabels: {{- include "pipeline.selector" . | nindent 8 }}
{{- end }}

{{/* The init container that writes a pod's own settings: include "pipeline.init" (list . "broker"). */}}
{{- define "pipeline.init" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
initContainers:
  - name: settings
    {{- include "pipeline.image" . | nindent 4 }}
    command: [/opt/pipeline/bin/python, /etc/pipeline/chart/settings.py, /etc/pipeline/chart/settings, /run/pipeline/settings.toml]
    env:
      - name: POD_NAME
        valueFrom: {fieldRef: {fieldPath: metadata.name}}
      - name: POD_IP
        valueFrom: {fieldRef: {fieldPath: status.podIP}}
      {{- if eq $part "broker" }}
      - name: RACK_FROM
        value: {{ $root.Values.broker.rackFrom }}
      - name: NODE_NAME
        valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
      {{- if eq $root.Values.broker.rackFrom "pod" }}
      - name: ZONE
        valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
      {{- end }}
      {{- end }}
    {{- include "pipeline.containerSecurity" $root | nindent 4 }}
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {memory: 128Mi}
    volumeMounts:
      - {name: chart, mountPath: /etc/pipeline/chart, readOnly: true}
      - {name: run, mountPath: /run/pipeline}
{{- end }}

{{- define "pipeline.mounts" -}}
- {name: chart, mountPath: /etc/pipeline/chart, readOnly: true}
- {name: run, mountPath: /run/pipeline}
- {name: tmp, mountPath: /tmp}
{{- if .Values.security.tls }}
- {name: secrets, mountPath: /etc/pipeline/secrets, readOnly: true}
{{- end }}
{{- end }}

{{/* Volumes of every pod: include "pipeline.volumes" (list . "broker"). */}}
{{- define "pipeline.volumes" -}}
{{- $root := index . 0 -}}
- name: chart
  configMap:
    name: {{ $root.Release.Name }}-{{ index . 1 }}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
- name: tmp
  emptyDir: {}
{{- if $root.Values.security.tls }}
- name: secrets
  secret:
    secretName: {{ required "security.secret: name the Secret with the certificates" $root.Values.security.secret | quote }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "pipeline.configMap" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $root.Release.Name }}-{{ $part }}
  labels: {{- include "pipeline.labels" . | nindent 4 }}
data:
  settings: |
    {{- index . 2 | nindent 4 }}
  settings.py: |
    {{- $root.Files.Get "files/settings.py" | nindent 4 }}
  wait.py: |
    {{- $root.Files.Get "files/wait.py" | nindent 4 }}
  zookeeper_ready.py: |
    {{- $root.Files.Get "files/zookeeper_ready.py" | nindent 4 }}
  {{- if and $root.Values.security.tls (eq $part "broker") }}
  admin.properties: |
    {{- range $key, $value := include "pipeline.client" (list $root "admin" "") | fromJson }}
    {{ $key }}={{ $value }}
    {{- end }}
  {{- if $root.Values.security.sasl }}
  acls.sh: |
    {{- tpl ($root.Files.Get "files/acls.sh") $root | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* Annotations of pods: a change of the settings restarts them, and Prometheus finds the port. */}}
{{- define "pipeline.annotations" -}}
{{- $root := index . 0 -}}
checksum/settings: {{ index . 2 | sha256sum }}
{{- if index . 3 }}
prometheus.io/scrape: "true"
prometheus.io/scheme: {{ include "pipeline.scheme" $root }}
prometheus.io/port: {{ index . 3 | quote }}
{{- end }}
{{- with $root.Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A dictionary as TOML: values first, then lists of dictionaries as tables. A JSON value is a TOML value. */}}
{{- define "pipeline.toml" -}}
{{- range $key, $value := . }}
{{- if not (and (kindIs "slice" $value) $value (kindIs "map" (first $value))) }}
{{ $key | quote }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $key, $value := . }}
{{- if and (kindIs "slice" $value) $value (kindIs "map" (first $value)) }}
{{- range $value }}

[[{{ $key | quote }}]]
{{- include "pipeline.toml" . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "pipeline.scheme" -}}
{{- ternary "https" "http" .Values.security.tls -}}
{{- end }}

{{- define "pipeline.protocol" -}}
{{- if .Values.security.sasl }}SASL_SSL{{ else if .Values.security.tls }}SSL{{ else }}PLAINTEXT{{ end -}}
{{- end }}

{{- define "pipeline.bootstrap" -}}
{{- $names := list -}}
{{- range until (int .Values.broker.replicas) -}}
{{- $names = append $names (printf "%s-broker-%d.%s-brokers.%s.svc.%s:9092" $.Release.Name . $.Release.Name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- join "," $names -}}
{{- end }}

{{- define "pipeline.zookeeperConnect" -}}
{{- if gt (int .Values.zookeeper.replicas) 0 -}}
{{- $names := list -}}
{{- range until (int .Values.zookeeper.replicas) -}}
{{- $names = append $names (printf "%s-zookeeper-%d.%s-zookeepers.%s.svc.%s:2181" $.Release.Name . $.Release.Name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- join "," $names -}}
{{- else -}}
{{- required "zookeeper.connect: name the servers, or let zookeeper.replicas be more than 0" .Values.zookeeper.connect -}}
{{- end -}}
{{- end }}

{{/* Settings of a client of brokers, as JSON, for the user of a part: include "pipeline.client" (list . "mirror" "destination."). */}}
{{- define "pipeline.client" -}}
{{- $security := (index . 0).Values.security -}}
{{- $user := index . 1 -}}
{{- $prefix := index . 2 -}}
{{- $settings := dict -}}
{{- if $security.tls -}}
{{- $_ := set $settings (print $prefix "security.protocol") (include "pipeline.protocol" (index . 0)) -}}
{{- $_ := set $settings (print $prefix "ssl.ca.location") "/etc/pipeline/secrets/ca.pem" -}}
{{- end -}}
{{- if $security.sasl -}}
{{- $_ := set $settings (print $prefix "sasl.mechanism") "PLAIN" -}}
{{- $_ := set $settings (print $prefix "sasl.username") $user -}}
{{- $_ := set $settings (print $prefix "sasl.password") (printf "${file:/etc/pipeline/secrets/passwords.properties:%s}" $user) -}}
{{- end -}}
{{- toJson $settings -}}
{{- end }}

{{/* Settings of an HTTP server, as JSON. */}}
{{- define "pipeline.http" -}}
{{- $settings := dict -}}
{{- if .Values.security.tls -}}
{{- $_ := set $settings "http.ssl.keystore.location" "/etc/pipeline/secrets/server.pem" -}}
{{- end -}}
{{- if .Values.security.sasl -}}
{{- $_ := set $settings "http.users.file" "/etc/pipeline/secrets/http-users" -}}
{{- $_ := set $settings "http.authentication.skip.paths" "/healthz,/readyz" -}}
{{- end -}}
{{- toJson $settings -}}
{{- end }}

{{/* Settings of a client of ZooKeeper, as JSON. */}}
{{- define "pipeline.zookeeperClient" -}}
{{- $root := index . 0 -}}
{{- $settings := dict "zookeeper.connect" (include "pipeline.zookeeperConnect" $root) -}}
{{- if $root.Values.security.tls -}}
{{- $_ := set $settings "zookeeper.ssl.client.enable" true -}}
{{- $_ := set $settings "zookeeper.ssl.truststore.location" "/etc/pipeline/secrets/ca.pem" -}}
{{- end -}}
{{- if $root.Values.security.sasl -}}
{{- $_ := set $settings "zookeeper.auth.username" (index . 1) -}}
{{- $_ := set $settings "zookeeper.auth.password" (printf "${file:/etc/pipeline/secrets/passwords.properties:%s}" (index . 1)) -}}
{{- $_ := set $settings "zookeeper.set.acl" true -}}
{{- end -}}
{{- toJson $settings -}}
{{- end }}

{{/* Probes of a service that is ready when it says so: include "pipeline.probes" (list . port path). */}}
{{- define "pipeline.probes" -}}
{{- $scheme := include "pipeline.scheme" (index . 0) | upper -}}
startupProbe:
  httpGet: {scheme: {{ $scheme }}, port: {{ index . 1 }}, path: "/healthz?check=process"}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {scheme: {{ $scheme }}, port: {{ index . 1 }}, path: "/healthz?check=process"}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {scheme: {{ $scheme }}, port: {{ index . 1 }}, path: "{{ index . 2 }}"}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 3
{{- end }}

{{- define "pipeline.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ (index . 0).Release.Name }}-{{ index . 1 }}
  labels: {{- include "pipeline.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "pipeline.selector" . | nindent 6 }}
{{- end }}

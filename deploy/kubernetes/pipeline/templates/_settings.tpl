{{/* Settings of every part, as its service reads them. Those of values win over those of the chart. */}}
{{- define "pipeline.zookeeperSettings" -}}
{{- $port := ternary "secureClientPort" "clientPort" .Values.security.tls -}}
{{- $settings := dict "dataDir" "/var/lib/pipeline/zookeeper" $port 2181 "tickTime" 2000 "initLimit" 10 "syncLimit" 5 "maxClientCnxns" 0 "autopurge.snapRetainCount" 3 "autopurge.purgeInterval" 1 "admin.enableServer" false "4lw.commands.whitelist" "ruok,srvr" "quorumListenOnAllIPs" true -}}
{{- if .Values.security.tls -}}
{{- $settings = merge $settings (dict "serverCnxnFactory" "org.apache.zookeeper.server.NettyServerCnxnFactory" "sslQuorum" true "sslQuorumReloadCertFiles" true "ssl.clientAuth" "none") -}}
{{- range list "ssl." "ssl.quorum." -}}
{{- $settings = merge $settings (dict (print . "keyStore.location") "/etc/pipeline/secrets/server.pem" (print . "keyStore.type") "PEM" (print . "trustStore.location") "/etc/pipeline/secrets/ca.pem" (print . "trustStore.type") "PEM") -}}
{{- end -}}
{{- end -}}
{{- if .Values.security.sasl -}}
{{- $settings = merge $settings (dict "authProvider.sasl" "org.apache.zookeeper.server.auth.SASLAuthenticationProvider" "enforce.auth.enabled" true "enforce.auth.schemes" "sasl") -}}
{{- end -}}
{{- range until (int .Values.zookeeper.replicas) -}}
{{- $_ := set $settings (printf "server.%d" (add1 .)) (printf "%s-zookeeper-%d.%s-zookeepers.%s.svc.%s:2888:3888" $.Release.Name . $.Release.Name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- range $key, $value := mergeOverwrite $settings (deepCopy .Values.zookeeper.settings) }}
{{ $key }}={{ if kindIs "string" $value }}{{ $value | replace "\\" "\\\\" }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end }}

{{- define "pipeline.brokerSettings" -}}
{{- $factor := min 3 (int .Values.broker.replicas) -}}
{{- $protocol := include "pipeline.protocol" . -}}
{{- $disks := list -}}
{{- range until (int .Values.broker.disks) -}}
{{- $disks = append $disks (printf "/var/lib/pipeline/disk-%d/logs" .) -}}
{{- end -}}
{{- $listeners := list "INTERNAL://0.0.0.0:9092" -}}
{{- $advertised := list (printf "INTERNAL://@POD_NAME@.%s-brokers.%s.svc.%s:9092" .Release.Name .Release.Namespace .Values.clusterDomain) -}}
{{- $protocols := list (print "INTERNAL:" $protocol) -}}
{{- with .Values.broker.external -}}
{{- if .enabled -}}
{{- $host := required "broker.external.host: give the address of a broker, with @ORDINAL@ for its number" .host -}}
{{- $listeners = append $listeners (printf "EXTERNAL://0.0.0.0:%d" (int .port)) -}}
{{- $advertised = append $advertised (printf "EXTERNAL://%s:%d" $host (int .port)) -}}
{{- $protocols = append $protocols (print "EXTERNAL:" $protocol) -}}
{{- end -}}
{{- end -}}
{{- $settings := dict "broker.id" "@ORDINAL@" "datacenter" .Values.datacenter "listeners" (join "," $listeners) "advertised.listeners" (join "," $advertised) "listener.security.protocol.map" (join "," $protocols) "inter.broker.listener.name" "INTERNAL" "http.listen" "0.0.0.0:9080" "log.dirs" (join "," $disks) "default.replication.factor" $factor "offsets.topic.replication.factor" $factor "min.insync.replicas" (max 1 (sub $factor 1)) "auto.create.topics.enable" false -}}
{{- if ne .Values.broker.rackFrom "none" -}}
{{- $_ := set $settings "broker.rack" "@RACK@" -}}
{{- end -}}
{{- if .Values.security.tls -}}
{{- $settings = merge $settings (dict "ssl.keystore.location" "/etc/pipeline/secrets/server.pem" "ssl.truststore.location" "/etc/pipeline/secrets/ca.pem") -}}
{{- end -}}
{{- if .Values.security.sasl -}}
{{- $password := "${file:/etc/pipeline/secrets/passwords.properties:%s}" -}}
{{- $login := print "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"broker\" password=\"" (printf $password "broker") "\"" -}}
{{- range list "broker" "admin" "mirror" "registry" "audit" "load" -}}
{{- $login = print $login " user_" . "=\"" (printf $password .) "\"" -}}
{{- end -}}
{{- $settings = merge $settings (dict "sasl.enabled.mechanisms" "PLAIN,SCRAM-SHA-512" "sasl.mechanism.inter.broker.protocol" "PLAIN" "plain.sasl.jaas.config" (print $login ";") "authorizer.class.name" "kafka.security.authorizer.AclAuthorizer" "super.users" "User:broker;User:admin") -}}
{{- end -}}
{{- $settings = mergeOverwrite $settings (include "pipeline.zookeeperClient" (list . "broker") | fromJson) (include "pipeline.http" . | fromJson) (deepCopy .Values.broker.settings) -}}
{{- include "pipeline.toml" $settings -}}
{{- end }}

{{- define "pipeline.registrySettings" -}}
{{- $ca := "/etc/pipeline/secrets/ca.pem" -}}
{{- $settings := dict "http.listen" "0.0.0.0:8081" "host.name" (printf "@POD_NAME@.%s-registries.%s.svc.%s" .Release.Name .Release.Namespace .Values.clusterDomain) "bootstrap.servers" (include "pipeline.bootstrap" .) "kafkastore.topic.replication.factor" (min 3 (int .Values.broker.replicas)) -}}
{{- if .Values.security.tls -}}
{{- $_ := set $settings "leader.schema.registry.ssl.ca.location" $ca -}}
{{- end -}}
{{- if .Values.security.sasl -}}
{{- $_ := set $settings "leader.basic.auth.user.info" "registry:${file:/etc/pipeline/secrets/passwords.properties:registry}" -}}
{{- end -}}
{{- with .Values.registry.leaders -}}
{{- $settings = merge $settings (dict "leader.eligibility" false "leader.urls" .) -}}
{{- end -}}
{{- $settings = mergeOverwrite $settings (include "pipeline.client" (list . "registry" "") | fromJson) (include "pipeline.http" . | fromJson) (deepCopy .Values.registry.settings) -}}
{{- include "pipeline.toml" $settings -}}
{{- end }}

{{- define "pipeline.mirrorSettings" -}}
{{- $sources := list -}}
{{- range .Values.mirror.sources -}}
{{- $client := include "pipeline.client" (list $ "mirror" "") | fromJson -}}
{{- $sources = append $sources (mergeOverwrite (dict "name" .name "bootstrap.servers" .bootstrap) $client (deepCopy (.settings | default dict))) -}}
{{- end -}}
{{- $settings := dict "http.listen" "0.0.0.0:9180" "destination.bootstrap.servers" (include "pipeline.bootstrap" .) "datacenter" .Values.datacenter "topics" .Values.mirror.topics "topics.exclude" .Values.mirror.topicsExclude "sources" $sources -}}
{{- $settings = mergeOverwrite $settings (include "pipeline.client" (list . "mirror" "destination.") | fromJson) (include "pipeline.zookeeperClient" (list . "mirror") | fromJson) (include "pipeline.http" . | fromJson) (deepCopy .Values.mirror.settings) -}}
{{- include "pipeline.toml" $settings -}}
{{- end }}

{{- define "pipeline.auditSettings" -}}
{{- $client := include "pipeline.client" (list . "audit" "") | fromJson -}}
{{- $live := list -}}
{{- range .Values.audit.live -}}
{{- $live = append $live (mergeOverwrite (dict "name" .name "bootstrap.servers" .bootstrap) (deepCopy $client) (deepCopy (.settings | default dict))) -}}
{{- end -}}
{{- $replica := mergeOverwrite (dict "name" .Values.datacenter "bootstrap.servers" (include "pipeline.bootstrap" .)) $client -}}
{{- $settings := dict "http.listen" "0.0.0.0:8085" "snapshot.dir" "/var/lib/pipeline" "spill.dir" "/var/lib/pipeline" "live" $live "replica" (list $replica) -}}
{{- $settings = mergeOverwrite $settings (include "pipeline.http" . | fromJson) (deepCopy .Values.audit.settings) -}}
{{- include "pipeline.toml" $settings -}}
{{- end }}

{{- define "pipeline.loadSettings" -}}
{{- $root := index . 0 -}}
{{- $load := index . 1 -}}
{{- $settings := dict "bootstrap.servers" (include "pipeline.bootstrap" $root) "root" $load.root "topics.include" ($load.topics | default ".*") -}}
{{- if gt (int $root.Values.registry.replicas) 0 -}}
{{- $_ := set $settings "schema.registry.url" (printf "%s://%s-registry.%s.svc.%s:8081" (include "pipeline.scheme" $root) $root.Release.Name $root.Release.Namespace $root.Values.clusterDomain) -}}
{{- if $root.Values.security.tls -}}
{{- $_ := set $settings "schema.registry.ssl.ca.location" "/etc/pipeline/secrets/ca.pem" -}}
{{- end -}}
{{- if $root.Values.security.sasl -}}
{{- $_ := set $settings "basic.auth.user.info" "load:${file:/etc/pipeline/secrets/passwords.properties:load}" -}}
{{- end -}}
{{- end -}}
{{- $settings = mergeOverwrite $settings (include "pipeline.client" (list $root "load" "") | fromJson) (deepCopy ($load.settings | default dict)) -}}
{{- include "pipeline.toml" $settings -}}
{{- end }}

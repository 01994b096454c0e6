# Gives the services their rights, once the brokers run: see security in docs/deploy/kubernetes.md.
set -eu
export PIPELINE_BOOTSTRAP={{ include "pipeline.bootstrap" . }}
export PIPELINE_CLIENT_CONFIG=/etc/pipeline/chart/admin.properties
pipeline acl add --allow-principal User:mirror --topic '*' --operation Read --operation Write --operation Create --operation Delete --operation Alter --operation DescribeConfigs --operation AlterConfigs
pipeline acl add --allow-principal User:mirror --group '*' --operation Read --operation Describe
pipeline acl add --allow-principal User:mirror --cluster --operation Describe --operation DescribeConfigs
pipeline acl add --allow-principal User:registry --topic _schemas --resource-pattern-type prefixed --operation Read --operation Write --operation Create --operation DescribeConfigs --operation AlterConfigs
pipeline acl add --allow-principal User:audit --topic '*' --operation Read --operation DescribeConfigs
pipeline acl add --allow-principal User:audit --topic _audit --operation Create --operation Write --operation DescribeConfigs --operation AlterConfigs
pipeline acl add --allow-principal User:audit --group '*' --operation Describe
pipeline acl add --allow-principal User:audit --cluster --operation Describe
pipeline acl add --allow-principal User:load --topic '*' --operation Read
pipeline acl add --allow-principal User:load --topic _audit --operation Create --operation Write --operation DescribeConfigs --operation AlterConfigs

#!/bin/sh
# generate.sh [PROTO]: writes omservev1/ from the .proto files, which lie in ../../proto by default.
# Wants protoc, protoc-gen-go and protoc-gen-go-grpc.
set -eu
proto=${1:-../../proto}
package=example.org/app/omservev1
names=Momserve/v1/inference.proto=$package,Momserve/v1/control.proto=$package,module=example.org/app
protoc -I "$proto" --go_out=. --go-grpc_out=. --go_opt="$names" --go-grpc_opt="$names" \
  omserve/v1/inference.proto omserve/v1/control.proto

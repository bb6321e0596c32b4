# Sourced by the other scripts: what they need from Debian, and how to get what is missing.

daemon_packages=(gcc g++ meson ninja-build pkg-config libuv1-dev libfmt-dev libcli11-dev libtomlplusplus-dev
  libexpected-dev nlohmann-json3-dev libseccomp-dev libsodium-dev libzstd-dev libxxhash-dev libzmq3-dev
  cppzmq-dev libmsgpack-cxx-dev libc-ares-dev libcurl4-openssl-dev libeigen3-dev libspectra-dev zlib1g-dev
  libabsl-dev catch2)
build_packages=("${daemon_packages[@]}" libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libssl-dev libnats-dev nginx-dev apache2-dev libnftables-dev libnode-dev)
run_packages=(netcat-openbsd tzdata)
package_packages=(debhelper dpkg-dev lintian)
test_packages=("${package_packages[@]}" zsh python3 netcat-openbsd tzdata mandoc systemd util-linux iproute2
  libfaketime coinor-csdp gnuplot-nox curl chromium
  etcd-server etcd-client nats-server redis-tools python3-redis nodejs node-redis openssl
  python3-grpcio python3-protobuf python3-msgpack python3-zstandard python3-zmq python3-yaml python3-jsonschema
  python3-venv python3-setuptools python3-wheel
  python3-limits python3-flask-limiter ruby ruby-rack-attack luajit2
  nftables nginx libnginx-mod-http-lua apache2 haproxy caddy lua-socket nghttp2-client)
services=(nginx apache2 haproxy caddy etcd-server nats-server)    # of those: the tests start their own
fuzz_packages=(clang-14 libclang-rt-14-dev llvm-14)

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Whether the package is installed, or another one that has what it is wanted for: NodeSource's nodejs brings the
# headers of libnode-dev, which cannot be installed beside it.
has_package() {
  dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed' ||
    { [ "$1" = libnode-dev ] && [ -e /usr/include/node/node_api.h ]; }
}

# Installs those of the given packages that are not there, and starts none of them. Asks nothing; needs root only if
# something is missing.
install_missing() {
  local package missing=() policy=/usr/sbin/policy-rc.d ours=
  for package in "$@"; do
    has_package "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing ${missing[*]}"
  if [ ! -e $policy ]; then    # "do not start it"
    ours=1
    printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
    as_root chmod 755 $policy
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}" \
      >/dev/null || missing=(failed)
  [ -z "$ours" ] || as_root rm $policy
  [ "${missing[*]}" != failed ] || return 1
  for package in "${services[@]}"; do
    if [ -d /run/systemd/system ] && [[ " ${missing[*]} " = *" $package "* ]]; then
      as_root systemctl --quiet disable "${package%-server}"
    fi
  done
}

# Puts promtool into the directory. Debian has it only in the package of the Prometheus server, which would run once it
# is installed; so the one program is taken out of the package.
get_promtool() {
  local to=$1 from
  [ ! -x "$to/promtool" ] && ! command -v promtool >/dev/null || return 0
  echo "fetching promtool"
  from=$(mktemp -d)
  (
    cd "$from"
    apt-get -qq download prometheus 2>/dev/null || { as_root apt-get -qq update && apt-get -qq download prometheus; }
    dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool >promtool
  )
  install -m 755 "$from/promtool" "$to/promtool"
  rm -r "$from"
}

# Configures a build directory, new or not, with the given meson options, and builds all of it, or only `targets`, with as
# many `jobs` at once. A new one has no debug information and compiles some sources of a library as one (meson's unity):
# that takes less than half the time.
build() {
  local dir=$1
  shift
  if [ -f "$dir/build.ninja" ]; then
    [ $# -eq 0 ] || meson configure "$dir" "$@" >/dev/null
  else
    meson setup "$dir" -Dunity=on -Ddebug=false "$@" >/dev/null
  fi
  ninja -C "$dir" --quiet ${jobs:+-j "$jobs"} ${targets:-}
}

# Sourced by the other scripts: what they need from Debian, and how to get what is missing.

build_packages=(g++ meson ninja-build pkg-config libuv1-dev libfmt-dev libcli11-dev libtomlplusplus-dev
  libexpected-dev nlohmann-json3-dev libsodium-dev libzstd-dev libxxhash-dev libsystemd-dev libzmq3-dev
  cppzmq-dev libc-ares-dev libeigen3-dev catch2)
run_packages=(netcat-openbsd)
test_packages=(python3 netcat-openbsd mandoc systemd util-linux iproute2 libfaketime coinor-csdp gnuplot-nox)
fuzz_packages=(clang-14 libclang-rt-14-dev llvm-14)

# Installs those of the given packages that are not there. Asks nothing; needs root only if something is missing.
install_missing() {
  local package missing=() as_root=()
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing ${missing[*]}"
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}" >/dev/null
}

# Configures a build directory, new or not, with the given meson options, and builds it.
build() {
  local dir=$1
  shift
  if [ -f "$dir/build.ninja" ]; then
    [ $# -eq 0 ] || meson configure "$dir" "$@" >/dev/null
  else
    meson setup "$dir" "$@" >/dev/null
  fi
  ninja -C "$dir" --quiet
}

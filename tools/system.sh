#!/bin/sh
# Installs with apt-get what pip cannot, as root or through sudo without a password; otherwise says what
# to install.
#   tools/system.sh base PYTHON   a C++20 compiler, and Python 3.11+ with venv and headers
#   tools/system.sh fuzz          clang with libFuzzer and the sanitizers
# Does nothing, quickly, when all is there.
set -eu

compiles() { # COMPILER FLAGS...: whether a program of C++20 compiles and links
    printf '#include <cstddef>\n#include <cstdint>\n#include <span>\n%s\n' "$source" |
        "$@" -std=c++20 -x c++ - -o /dev/null 2>/dev/null
}

missing_base() {
    source='int main() { return static_cast<int>(std::span<int>().size()); }'
    compiles "${CXX:-c++}" || printf 'g++ '
    "$python" -c 'import ensurepip, venv' 2>/dev/null || printf 'python3-venv '
    "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
        printf 'python3-dev '
}

missing_fuzz() {
    source='extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }'
    compiles clang++ -fsanitize=fuzzer,address,undefined && return
    printf 'clang '
    version=$(clang++ -dumpversion 2>/dev/null | cut -d. -f1)
    [ -z "$version" ] || printf 'libclang-rt-%s-dev ' "$version"
}

install() { # PACKAGES...
    if [ "$(id -u)" = 0 ]; then
        run=env
    elif sudo -n true 2>/dev/null; then
        run='sudo env'
    else
        return 1
    fi
    command -v apt-get >/dev/null || return 1
    echo "installing $*"
    $run DEBIAN_FRONTEND=noninteractive apt-get -qq update >/dev/null &&
        $run DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$@" >/dev/null
}

what=$1
python=${2:-python3}
if [ "$what" = base ] && ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Python 3.11 or later is needed and '$python' is not." >&2
    echo "Install one, or name it with make PYTHON=python3.12" >&2
    exit 1
fi
for attempt in 1 2; do # clang's run-time library is a package of its own on some systems
    packages=$("missing_$what")
    [ -n "$packages" ] || exit 0
    # shellcheck disable=SC2086
    install $packages || break
done
packages=$("missing_$what")
[ -n "$packages" ] || exit 0
echo "these are missing; install them and try again: sudo apt-get install $packages" >&2
exit 1

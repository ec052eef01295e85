#!/bin/sh
# Prepares a computer for Baton: `prepare.sh venv` makes .venv, `libraries` tries whether what was installed there can
# be loaded, `window` the same of what the window needs, `compiler` looks for a C++ compiler. What the system lacks is installed where that may be done without
# asking (root on Debian or Ubuntu); elsewhere the command to type is printed.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

# install_package WHAT DEBIAN-PACKAGE MACOS-COMMAND
install_package() {
    if [ "$(uname)" = Darwin ]; then
        fail "$1 is missing. Type:" "    $3"
    elif ! command -v apt-get >/dev/null 2>&1; then
        fail "$1 is missing. Install it with your system's package manager (on Debian it is in the package $2)."
    elif [ "$(id -u)" -ne 0 ]; then
        fail "$1 is missing. Type:" "    sudo apt-get install $2"
    fi
    echo "$1 is missing: installing $2"
    { apt-get install -y -qq "$2" || { apt-get update -qq && apt-get install -y -qq "$2"; }; } >/dev/null 2>&1 ||
        fail "$1 is missing and could not be installed. Type:" "    apt-get update && apt-get install $2"
}

is_new_enough() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14; do
        if is_new_enough "$name"; then
            echo "$name"
            return
        fi
    done
}

make_venv() {
    python=$(find_python)
    if [ -z "$python" ]; then
        install_package "Python 3.11 or newer" python3 "brew install python@3.13"
        python=$(find_python)
        [ -n "$python" ] || fail "This system's Python is older than 3.11. Install a newer one, and run:" \
            "    make PYTHON=/path/to/python3.11 demo"
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        install_package "Python's venv module" "python$version-venv" "brew install python@$version"
    fi
    echo "Making .venv with $("$python" --version)"
    "$python" -m venv .venv
}

# try_libraries PYTHON-MODULES
try_libraries() {
    while ! complaint=$(.venv/bin/python -c "import $1" 2>&1); do
        library=$(printf '%s\n' "$complaint" | sed -n 's/.*[^A-Za-z0-9_.+-]*\(lib[A-Za-z0-9_.+-]*\.so[.0-9]*\): cannot open.*/\1/p' | tail -n 1)
        case "$library" in
            "") fail "$complaint" "" "What was installed cannot be loaded; run \`make clean\` and try again." ;;
            "${tried:-}") fail "The system library $library is still missing after its package was installed." ;;
            libstdc++.so.*) package=libstdc++6 ;;
            libgcc_s.so.*) package=libgcc-s1 ;;
            libgomp.so.*) package=libgomp1 ;;
            libz.so.*) package=zlib1g ;;
            libssl.so.* | libcrypto.so.*) package=libssl3 ;;
            libffi.so.*) package=libffi8 ;;
            libnuma.so.*) package=libnuma1 ;;
            libEGL.so.*) package=libegl1 ;;
            libGL.so.*) package=libgl1 ;;
            libxkbcommon.so.*) package=libxkbcommon0 ;;
            libdbus-1.so.*) package=libdbus-1-3 ;;
            libfontconfig.so.*) package=libfontconfig1 ;;
            libfreetype.so.*) package=libfreetype6 ;;
            libglib-2.0.so.* | libgthread-2.0.so.*) package=libglib2.0-0 ;;
            *) fail "The system library $library is missing. Install it with your system's package manager." ;;
        esac
        install_package "The system library $library" "$package" "xcode-select --install"
        tried=$library
    done
}

find_compiler() {
    command -v c++ >/dev/null 2>&1 || install_package "A C++ compiler" g++ "xcode-select --install"
}

case "${1:-}" in
    venv) make_venv ;;
    libraries) try_libraries "cryptography, numpy, tokenizers, torch" ;;
    window) try_libraries "PySide6.QtNetwork, PySide6.QtSvg, PySide6.QtWidgets" ;;
    compiler) find_compiler ;;
    *) fail "usage: prepare.sh venv|libraries|window|compiler" ;;
esac

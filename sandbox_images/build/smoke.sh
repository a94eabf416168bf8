#!/bin/sh
# Run by `sh -eu` as the image's own user, without a network, with the capabilities of a sandbox.
expect() { # expect WHAT WANTED GOT
    [ "$2" = "$3" ] || { echo "$1: wanted '$2', got '$3'" >&2; exit 1; }
}
expect "user" "user" "$(id -un)"
cd /tmp
printf '#include <Python.h>\nint main(void) { return sizeof(PyObject *) == 8 ? 42 : 1; }\n' > smoke.c
cc $(python3-config --includes) -o smoke smoke.c
code=0 && ./smoke || code=$?
expect "exit code of a compiled program" "42" "$code"
printf 'int main() { return 0; }\n' > smoke.cc && c++ -o smoke2 smoke.cc && ./smoke2
make --version > /dev/null
expect "package caches left behind" "" "$(sudo -n find /var/cache/apt /var/lib/apt/lists -type f ! -name lock)"

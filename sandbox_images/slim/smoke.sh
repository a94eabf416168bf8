#!/bin/sh
# Run by `sh -eu` as the image's own user, without a network, with the capabilities of a sandbox.
expect() { # expect WHAT WANTED GOT
    [ "$2" = "$3" ] || { echo "$1: wanted '$2', got '$3'" >&2; exit 1; }
}
expect "user" "user" "$(id -un)"
expect "uid:gid" "1000:1000" "$(id -u):$(id -g)"
expect "working directory" "/home/user" "$(pwd)"
expect "home of user" "/home/user" "$(getent passwd user | cut -d: -f6)"
expect "root through sudo" "0" "$(sudo -n id -u)"
expect "python" "42" "$(python3 -c 'print(6 * 7)')"
expect "file name encoding" "utf-8" "$(python3 -c 'import sys; print(sys.getfilesystemencoding())')"
test -s /etc/ssl/certs/ca-certificates.crt
touch /home/user/.smoke && rm /home/user/.smoke
expect "package caches left behind" "" "$(sudo -n find /var/cache/apt /var/lib/apt/lists -type f ! -name lock)"

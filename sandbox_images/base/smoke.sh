#!/bin/sh
# Run by `sh -eu` as the image's own user, without a network, with the capabilities of a sandbox.
expect() { # expect WHAT WANTED GOT
    [ "$2" = "$3" ] || { echo "$1: wanted '$2', got '$3'" >&2; exit 1; }
}
expect "user" "user" "$(id -un)"
expect "working directory" "/home/user" "$(pwd)"
expect "python is python3" "$(python3 --version)" "$(python --version)"
python3 -m pip --version > /dev/null
python3 -m venv /tmp/smoke-venv
/tmp/smoke-venv/bin/python -m pip --version > /dev/null
expect "node" "42" "$(node --eval 'console.log(6 * 7)')"
npm --version > /dev/null
curl --version > /dev/null
ps -o pid= -p 1 > /dev/null
git init --quiet /tmp/smoke-repo
cd /tmp/smoke-repo
echo one > file && git add file
git -c user.name=smoke -c user.email=smoke@localhost commit --quiet --message one
echo two > file
git diff --exit-code > /tmp/smoke.patch && { echo "git diff saw no change" >&2; exit 1; }
expect "lines of the patch" "1" "$(grep --count '^+two$' /tmp/smoke.patch)"
expect "package caches left behind" "" "$(sudo -n find /var/cache/apt /var/lib/apt/lists -type f ! -name lock)"

#!/bin/sh
# Installs welte for this user: curl -fsSL @home@/install.sh | sh
#   WELTE_VERSION=0.1.0     the version (default: @version@)
#   WELTE_PREFIX=DIR        where to (default: ~/.local)
#   WELTE_HOME_URL=URL      where from; file:// works, too
# `sh install.sh remove` removes what an install with the same prefix has put there.
set -eu

version=${WELTE_VERSION:-@version@}
prefix=${WELTE_PREFIX:-${HOME:?HOME is not set; choose a folder with WELTE_PREFIX}/.local}
home=${WELTE_HOME_URL:-@home@}
list=$prefix/share/welte/installed-files

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

remove() {
    [ -f "$list" ] || fail "nothing is installed in $prefix"
    while IFS= read -r file; do
        rm -f "$prefix/$file"
    done < "$list"
    # Folders that are empty now, the deepest first.
    sed 's|/[^/]*$||' "$list" | sort -ru | while IFS= read -r folder; do
        while [ "$folder" != . ] && rmdir "$prefix/$folder" 2> /dev/null; do
            folder=$(dirname "$folder")
        done
    done
    rm -f "$list"
    for folder in "$prefix/share/welte" "$prefix/share" "$prefix"; do rmdir "$folder" 2> /dev/null || true; done
}

fetch() { # fetch URL FILE
    case $1 in
    file://*) cp "${1#file://}" "$2" ;;
    *)
        if command -v curl > /dev/null; then
            curl --fail --silent --show-error --location --output "$2" "$1"
        elif command -v wget > /dev/null; then
            wget --quiet --output-document="$2" "$1"
        else
            fail "needs curl or wget"
        fi
        ;;
    esac || fail "$1 cannot be fetched"
}

sum() {
    if command -v sha256sum > /dev/null; then
        sha256sum "$1"
    elif command -v shasum > /dev/null; then
        shasum -a 256 "$1"
    else
        fail "needs sha256sum or shasum to check what was fetched"
    fi | cut -d ' ' -f 1
}

main() {
    if [ "${1:-}" = remove ]; then
        remove
        echo "welte is removed from $prefix"
        exit
    fi
    [ $# -eq 0 ] || fail "unknown argument $1; use remove or nothing"
    case $(uname -s) in
    Linux) system=linux ;;
    Darwin) fail "there is no archive for macOS; use Homebrew, or build from source" ;;
    *) fail "there is no package for $(uname -s); build from source" ;;
    esac
    case $(uname -m) in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no package for $(uname -m); build from source" ;;
    esac
    name=welte-$version-$system-$machine
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    fetch "$home/releases/$version/SHA256SUMS" "$work/sums"
    fetch "$home/releases/$version/$name.tar.gz" "$work/archive"
    wanted=$(sed -n "s/^\([0-9a-f]\{64\}\)  $name\.tar\.gz\$/\1/p" "$work/sums")
    [ -n "$wanted" ] || fail "SHA256SUMS has no line for $name.tar.gz"
    found=$(sum "$work/archive")
    [ "$wanted" = "$found" ] || fail "$name.tar.gz has the checksum $found, and SHA256SUMS says $wanted; nothing is installed"
    mkdir "$work/unpacked"
    tar -xzf "$work/archive" -C "$work/unpacked"
    (cd "$work/unpacked/$name" && find . ! -type d | sed 's|^\./||' | sort) > "$work/new"
    mkdir -p "$prefix/share/welte"
    # What is written is listed first, so that an install that breaks off can be removed.
    touch "$list"
    sort -u "$list" "$work/new" > "$work/all"
    cp "$work/all" "$list"
    while IFS= read -r file; do
        mkdir -p "$prefix/$(dirname "$file")"
        # A program at work keeps its file, and a link is replaced, not followed.
        cp -P "$work/unpacked/$name/$file" "$prefix/$file.new"
        rm -f "$prefix/$file"
        mv "$prefix/$file.new" "$prefix/$file"
    done < "$work/new"
    # An older version may have files that this one lacks.
    comm -13 "$work/new" "$work/all" | while IFS= read -r file; do rm -f "$prefix/$file"; done
    cp "$work/new" "$list"
    "$prefix/bin/welte" --version
    case :${PATH:-}: in
    *:"$prefix/bin":*) ;;
    *) echo "add $prefix/bin to PATH" ;;
    esac
}

# As one command, so that a download that breaks off runs nothing.
main "$@"

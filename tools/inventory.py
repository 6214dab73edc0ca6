#!/usr/bin/env python3
"""Writes an inventory of what the binary contains (CycloneDX 1.5): every crate that welte-cli and welte-c need on Linux, with its
version, licence and checksum."""

import json
import subprocess
import sys

ROOTS = ("welte-cli", "welte-c")
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    for target in TARGETS:
        command += ["--filter-platform", target]
    data = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    todo = [id for id, package in packages.items() if package["name"] in ROOTS]
    found = {}
    while todo:
        id = todo.pop()
        if id in found:
            continue
        # Of normal and build dependencies; those of tests are not shipped.
        found[id] = [
            dep["pkg"] for dep in nodes[id]["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])
        ]
        todo += found[id]
    def ref(id):
        package = packages[id]
        return f"pkg:cargo/{package['name']}@{package['version']}"
    def component(id):
        package = packages[id]
        one = {"type": "library", "bom-ref": ref(id), "name": package["name"], "version": package["version"], "purl": ref(id)}
        if package["license"]:
            one["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        return one
    version = next(package["version"] for package in packages.values() if package["name"] == "welte-cli")
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "welte", "name": "welte", "version": version}},
        "components": [component(id) for id in sorted(found, key=ref)],
        "dependencies": [
            {"ref": ref(id), "dependsOn": sorted({ref(dep) for dep in found[id]})} for id in sorted(found, key=ref)
        ],
    }
    json.dump(bom, sys.stdout, indent=1)
    print()


main()

#!/usr/bin/env python3
"""Adds invented GPUs and NVMe drives to a synthetic hwloc topology of two packages.

    HWLOC_SYNTHETIC="pack:2 [numa] core:4 pu:1" lstopo-no-graphics -f --of xml synth.xml
    ./make_topology.py synth.xml > two_socket_4gpu.xml
    ./make_topology.py synth.xml --against > gpus_against_numa.xml    # the first GPUs sit on package 1
"""
import sys


def devices(socket, package, number):
    """A host bridge below `package` with two GPUs and one drive, the `socket`-th in PCI order."""
    base = 0x10 + 0x40 * socket
    out = (f'<object type="Bridge" gp_index="{number}" bridge_type="0-1" depth="0" '
           f'bridge_pci="0000:[{base:02x}-{base + 15:02x}]">\n')
    for k in range(2):
        number += 2
        out += (f'<object type="PCIDev" gp_index="{number}" pci_busid="0000:{base + 1 + k:02x}:00.0" '
                'pci_type="0302 [10de:2335] [10de:18be] a1" pci_link_speed="63.015385">'
                f'<object type="OSDev" gp_index="{number + 1}" name="cuda{2 * socket + k}" subtype="CUDA" '
                'osdev_type="5"/></object>\n')
    number += 2
    out += (f'<object type="PCIDev" gp_index="{number}" pci_busid="0000:{base + 8:02x}:00.0" '
            'pci_type="0108 [144d:a80a] [144d:a813] 00" pci_link_speed="15.753846">'
            f'<object type="OSDev" gp_index="{number + 1}" name="nvme{package}n1" subtype="Disk" '
            'osdev_type="0"/></object>\n</object>\n')
    return out


def main():
    text = open(sys.argv[1]).read()
    against = "--against" in sys.argv[2:]
    for package in range(2):  # children of a package end before its closing tag
        start = text.index(f'<object type="Package" os_index="{package}"')
        end = text.index("\n    </object>", start) + 1
        socket = 1 - package if against else package
        text = text[:end] + devices(socket, package, 1000 + 8 * package) + text[end:]
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
